"""The rules about this repository's source find violations: import contracts, lengths of files and functions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.house import tidy

CONFIG = tidy.ROOT / "pyproject.toml"
MACHINE = "kshare_coordinator/machine"
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"


def make_tree(folder: Path) -> None:
    """Empty packages of all the names that the contracts speak about, and the contracts themselves."""
    shutil.copy(CONFIG, folder)
    settings = tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]
    names: list[str] = list(settings["root_packages"])
    exceptions: list[tuple[str, ...]] = []
    for contract in settings["contracts"]:
        names += contract.get("source_modules", [])
        names += [name for name in contract.get("forbidden_modules", []) if name.startswith("kshare")]
        exceptions += [tuple(each.split(" -> ")) for each in contract.get("ignore_imports", [])]
    for name in [*names, *(imported for _, imported in exceptions), *(importer for importer, _ in exceptions)]:
        package = folder
        for part in name.split("."):
            package = package / part
            package.mkdir(exist_ok=True)
            (package / "__init__.py").touch()
    for importer, imported in exceptions:  # an exception that nothing needs is refused
        (folder.joinpath(*importer.split(".")) / "__init__.py").write_text(f"import {imported}\n")


def lint(folder: Path) -> tuple[int, str]:
    """lint-imports takes packages of the folder where it runs before the installed ones."""
    done = subprocess.run(
        [str(LINT_IMPORTS), "--no-cache"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},  # one line for each contract
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_clean_tree_keeps_the_contracts(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / "kshare_gateway" / "here.py").write_text(
        "import kshare_rpc\nimport kshare_servicekit\nimport asyncio\n"
    )
    code, text = lint(tmp_path)
    assert code == 0, text


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("kshare_gateway/relay.py", "kshare_leader", "Services never import services"),
        ("kshare_share_coordinator/relay.py", "kshare", "Services never import services"),
        ("kshare_wire/relay.py", "kshare_rpc", "Services never import services"),
        ("kshare_core/relay.py", "grpc", "The core needs the standard library only"),
        ("kshare_leader/machine/relay.py", "asyncio", "Machines are pure"),
        (f"{MACHINE}/catalog/relay.py", "kshare_coordinator.machine.transactions", "The coordinator's features import"),
        (f"{MACHINE}/offsets/relay.py", "kshare_coordinator.machine.catalog", "The coordinator's groups and offsets"),
        (f"{MACHINE}/groups/share/relay.py", "kshare_coordinator.machine.groups.classic", "Share groups know no other"),
        (f"{MACHINE}/groups/classic/relay.py", "kshare_coordinator.machine.groups.share", "Classic groups know no"),
        ("kshare_gateway/share/relay.py", "kshare_gateway.handlers.share", "What the gateway's handlers share"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(tmp_path: Path, module: str, imported: str, contract: str) -> None:
    make_tree(tmp_path)
    (tmp_path / module).write_text(f"import {imported}\n")
    code, text = lint(tmp_path)
    assert code != 0, text
    (broken,) = [line for line in text.splitlines() if re.search(r" BROKEN( \(|$)", line)]
    assert broken.startswith(contract), text


def test_what_is_too_long_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "libs").mkdir()
    source = tmp_path / "libs" / "long.py"
    body = "    pass\n" * (tidy.FUNCTION_LINES_MAX - 1)
    function = f"def work() -> None:\n{body}"
    source.write_text(f'"""Says what it holds."""\n{function}')
    assert (tidy.main(), capsys.readouterr().err) == (0, "")
    source.write_text(f'"""Says what it holds."""\n{function}    pass\n')
    assert tidy.main() == 1
    assert "libs/long.py:2: work has 71 lines" in capsys.readouterr().err
    source.write_text('"""Says what it holds."""\n' + "x = 1\n" * tidy.FILE_LINES_MAX)
    assert tidy.main() == 1
    assert f"libs/long.py: {tidy.FILE_LINES_MAX + 1} lines" in capsys.readouterr().err
    source.write_text("x = 1\n")
    assert tidy.main() == 1
    assert "no module docstring" in capsys.readouterr().err
