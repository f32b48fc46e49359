"""References in documents and docstrings: each path, module, command, `make` target and numbered section must exist.

PYTHONPATH=tests .venv/bin/python -m support.house.references

Checked are all Markdown files and the docstrings of all Python files, of modules, classes, functions and attributes:

- a path in backticks: the path of a file or folder of the repository, or its end (`house/tidy.py`, `machine/`).
  Globs are allowed. A placeholder in angle brackets and `…` stand for any text. Absolute paths belong to a container.
- a Markdown link to a file, relative to the document, and its heading after `#`;
- a module in backticks (`kshare_core.errors`), up to its first name below the package;
- a target of `make`, in backticks or in an indented block;
- a numbered section of a Markdown file;
- a `kshare` command with its options (`command_references`).
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import typer

from kshare.main import app
from support.house.command_references import command_problems_of, tree_of

ROOT = Path(__file__).resolve().parents[3]
PATH_ENDINGS = (".py", ".md", ".c", ".proto", ".yaml", ".yml", ".toml", ".java")
TOP_FOLDERS = frozenset({"deploy", "docs", "examples", "helm", "libs", "protos", "services", "tests"})
OUTSIDE = ("data/", "certificates/", "backups/", "history/")
"""Folders that users or processes make: paths below them are not in the repository."""

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"`([^`\s]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MAKE = re.compile(r"(?:`|^ {4})make ([a-z][\w-]*)", re.MULTILINE)
_MODULE = re.compile(r"(kshare_\w+)\.(\w+)[\w.]*")
_SECTION = re.compile(r"`?([\w./-]+\.md)`?,? sections? (\d+)")
_TARGET = re.compile(r"^([a-z][\w-]*):(?!=)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"<[^<>]*>|\{[^{}]*\}|…")


class Repository:
    """The names of all files, the texts of the Markdown files, and the Makefile's targets."""

    def __init__(self, files: Iterable[str], documents: dict[str, str], makefile: str) -> None:
        self.documents = documents
        self.targets = frozenset(_TARGET.findall(makefile))
        self.endings = frozenset(ending for name in files for ending in _endings(name))

    def has_path(self, path: str) -> bool:
        """Whether a file or folder has this path, or one that ends with it. A glob needs one match."""
        pattern = _PLACEHOLDER.sub("*", path.removeprefix("./")).rstrip("/")
        while pattern.startswith("../"):
            pattern = pattern.removeprefix("../")
        if "*" not in pattern:
            return pattern in self.endings
        return any(fnmatchcase(ending, pattern) for ending in self.endings)

    def has_heading(self, document: str, anchor: str) -> bool:
        headings = re.findall(r"^#+ (.+)$", self.documents.get(document, ""), re.MULTILINE)
        return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}

    def has_section(self, document: str, number: str) -> bool:
        texts = [text for name, text in self.documents.items() if f"/{name}".endswith(f"/{document}")]
        return any(re.search(rf"^#+ {number}\. ", text, re.MULTILINE) for text in texts)


def _endings(name: str) -> Iterator[str]:
    """All ends of a file's path and of its folders' paths; of a Python module also without `.py`."""
    path = PurePosixPath(name)
    for place in (path, *path.parents):
        parts = place.parts
        for first in range(len(parts)):
            ending = "/".join(parts[first:])
            yield ending
            if "/" in ending:
                yield ending.removesuffix(".py")


def is_path(quoted: str) -> bool:
    """Whether a text in backticks names a file or folder of the repository."""
    if not re.fullmatch(r"[\w.*<>{},/…-]+", quoted) or quoted.startswith(("/", "<", "*", ".", *OUTSIDE)):
        return False
    if quoted.endswith(PATH_ENDINGS):
        return True
    first, slash, _ = quoted.partition("/")
    return slash == "/" and (quoted.endswith("/") or first in TOP_FOLDERS or first.startswith("kshare_"))


def problems_of(name: str, text: str, repository: Repository) -> Iterator[str]:
    """The dead references of one document or docstring, a line each. `name` is the path of its file."""
    prose = _FENCE.sub("", text)
    for quoted in _QUOTED.findall(prose):
        module = _MODULE.fullmatch(quoted)
        if module is not None and not quoted.endswith(PATH_ENDINGS):
            package, first = module.groups()
            known = {f"{package}/{first}", f"{package}/{first}.py"} & repository.endings
            if not known and package in repository.endings and first.islower():
                yield f"{name}: there is no module {package}.{first} (`{quoted}`)"
        elif is_path(quoted) and not repository.has_path(quoted):
            yield f"{name}: there is no file or folder `{quoted}`"
    for target in _MAKE.findall(prose):
        if target not in repository.targets:
            yield f"{name}: the Makefile has no target {target}"
    for document, number in _SECTION.findall(prose):
        if not repository.has_section(document, number):
            yield f"{name}: {document} has no section {number}"


def link_problems_of(name: str, text: str, repository: Repository, files: frozenset[str]) -> Iterator[str]:
    """The dead links of one Markdown file, a line each."""
    for link in _LINK.findall(_FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = _resolved(PurePosixPath(name).parent / path) if path else name
        if target not in files and not any(file.startswith(f"{target}/") for file in files):
            yield f"{name}: the link {link} leads to no file"
        elif anchor and not repository.has_heading(target, anchor):
            yield f"{name}: the link {link} leads to no heading"


def _resolved(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return "/".join(parts)


def files_of(root: Path) -> frozenset[str]:
    """All files of the repository but ignored ones; new ones count before they are committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return frozenset(name for name in listed if (root / name).is_file())


def docstrings_of(tree: ast.AST) -> Iterator[str]:
    """The texts that stand alone as statements: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield inspect.cleandoc(node.value.value)


def problems(root: Path) -> Iterator[str]:
    """All dead references below `root`."""
    files = files_of(root)
    documents = {name: (root / name).read_text() for name in sorted(files) if name.endswith(".md")}
    repository = Repository(files, documents, (root / "Makefile").read_text())
    kshare = tree_of(typer.main.get_command(app))
    for name, text in documents.items():
        yield from problems_of(name, text, repository)
        yield from command_problems_of(name, text, kshare)
        yield from link_problems_of(name, text, repository, files)
    for name in sorted(files):
        if name.endswith(".py") and "generated" not in PurePosixPath(name).parts:
            for docstring in docstrings_of(ast.parse((root / name).read_text())):
                yield from problems_of(name, docstring, repository)
                yield from command_problems_of(name, docstring, kshare)


def main() -> int:
    found = list(problems(ROOT))
    for problem in found:
        sys.stderr.write(problem + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
