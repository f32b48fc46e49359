"""Every import of a package is declared in its pyproject.toml, and every declared dependency is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = sorted(path.parent for folder in ("libs", "services") for path in (ROOT / folder).glob("*/pyproject.toml"))
NOT_IMPORTED = {
    "kshare-wire": {"crc32c"},
    "kshare-spark": {"pandas"},
}
"""Declared for another reason than an import: the C extension and PySpark import them."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(package: Path) -> tuple[str, set[str], set[str]]:
    """The package's name, what it always needs, and what its extras need."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    names = [canonical(re.split(r"[\[<>=!~; ]", text)[0]) for text in project.get("dependencies", [])]
    extras = [
        canonical(re.split(r"[\[<>=!~; ]", text)[0])
        for texts in project.get("optional-dependencies", {}).values()
        for text in texts
    ]
    return project["name"], set(names), set(extras)


def imports(tree: ast.AST) -> Iterator[str]:
    """The first names of modules that are imported anywhere, except under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        yield from imports(node)


@cache
def owners() -> dict[str, Sequence[str]]:
    """The distributions of each top-level module."""
    return dict(packages_distributions())


@cache
def files(distribution: str) -> frozenset[str]:
    return frozenset(str(file) for file in metadata.files(distribution) or ())


def distribution(module: str) -> str:
    """The distribution that a module is part of; several share a namespace such as `google`."""
    first = module.partition(".")[0]
    names = owners().get(first, [first])
    path = module.replace(".", "/")
    for name in set(names) if len(set(names)) > 1 else ():
        if {f"{path}.py", f"{path}/__init__.py"} & files(name):
            return canonical(name)
    return canonical(names[0])


def imported(package: Path) -> dict[str, set[str]]:
    """The distributions that a package imports, each with the modules named."""
    own = {path.name for path in (package / "src").iterdir()}
    found: dict[str, set[str]] = {}
    for path in (package / "src").rglob("*.py"):
        for module in imports(ast.parse(path.read_text())):
            first = module.partition(".")[0]
            if first in own or first in sys.stdlib_module_names:
                continue
            found.setdefault(distribution(module), set()).add(f"{module} in {path.relative_to(ROOT)}")
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_import_is_declared(package: Path) -> None:
    _, always, extras = declared(package)
    found = imported(package)
    assert {name: places for name, places in found.items() if name not in always | extras} == {}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_declared_dependency_is_imported(package: Path) -> None:
    name, always, extras = declared(package)
    assert (always | extras) - imported(package).keys() - NOT_IMPORTED.get(name, set()) == set()


def test_the_command_needs_spark_only_with_its_extra() -> None:
    _, always, extras = declared(ROOT / "services" / "cli")
    assert not always & {"pyspark", "pyarrow", "pandas", "kshare-spark", "kshare-pipeline"}
    assert {"pyspark", "kshare-spark", "kshare-pipeline"} <= extras


def test_the_spark_library_needs_no_service() -> None:
    needed, waiting = set(), ["kshare-spark"]
    packages = {declared(package)[0]: declared(package)[1] for package in PACKAGES}
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += packages.get(name, ())
    ours = {name for name in needed if name.startswith("kshare")}
    assert ours == {"kshare-spark", "kshare-kafka-client", "kshare-upstream", "kshare-wire", "kshare-core"}
