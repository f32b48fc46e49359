"""Rules about the source itself that no linter knows: sizes of files, functions and folders, and a docstring each.

.venv/bin/python tests/support/house/tidy.py
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
FOLDER_FILES_MAX = 20
TEST_FOLDER_FILES_MAX = 25
ROOT = Path(__file__).resolve().parents[3]


def python_files() -> list[Path]:
    """Our own Python files; generated ones are not ours."""
    folders = ("libs", "services", "tests", "protos", "deploy")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if "generated" not in path.parts and ".venv" not in path.parts]


def problems_of(path: Path) -> Iterator[str]:
    """What is wrong with one file, a line each."""
    name = path.relative_to(ROOT)
    text = path.read_text()
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{name}: {lines} lines; a file has at most {FILE_LINES_MAX}"
    tree = ast.parse(text)
    if text.strip() and ast.get_docstring(tree) is None:
        yield f"{name}: no module docstring; its first lines say what it holds"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines; at most {FUNCTION_LINES_MAX}"


def full_folders() -> Iterator[str]:
    """Folders of product code with more files than a reader takes in; the gateway has one handler for each API."""
    for folder in sorted({path.parent for root in ("libs", "services") for path in (ROOT / root).rglob("src/**/*.py")}):
        name = folder.relative_to(ROOT)
        files = list(folder.glob("*.py"))
        if (
            len(files) > FOLDER_FILES_MAX
            and "generated" not in name.parts
            and "kshare_gateway/handlers" not in str(name)
        ):
            yield f"{name}: {len(files)} files; a folder has at most {FOLDER_FILES_MAX}"


def full_test_folders() -> Iterator[str]:
    """Folders of tests with more files than a reader takes in: tests lie in folders by feature, as the product does."""
    for folder in sorted({path.parent for path in (ROOT / "tests").rglob("*.py")}):
        count = len(list(folder.glob("*.py")))
        if count > TEST_FOLDER_FILES_MAX:
            yield f"{folder.relative_to(ROOT)}: {count} files; a folder of tests has at most {TEST_FOLDER_FILES_MAX}"


def untyped_handlers() -> Iterator[str]:
    """Handlers of the gateway that name `Any`: a misspelt field of a message would pass."""
    for path in sorted((ROOT / "services/gateway/src/kshare_gateway/handlers").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and node.id == "Any":
                yield f"{path.relative_to(ROOT)}:{node.lineno}: Any in a handler; name the message's class"


def main() -> int:
    found = [problem for path in python_files() for problem in problems_of(path)]
    found += [*full_folders(), *full_test_folders(), *untyped_handlers()]
    for problem in found:
        sys.stderr.write(problem + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
