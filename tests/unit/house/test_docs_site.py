"""The docs site's configuration: a dead link, a dead anchor or a page outside the navigation fails the build."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent.parent.parent / "docs"
INDEX = "# Docs\n\n```{toctree}\nlogs\n```\n"


def build(root: Path, index: str, logs: str, **pages: str) -> subprocess.CompletedProcess[str]:
    """Builds a site of an index, docs/logs.md and further pages as `make docs` does."""
    docs = root / "docs"
    docs.mkdir()
    shutil.copy(DOCS / "conf.py", docs)
    shutil.copytree(DOCS / "site", docs / "site")
    for name, text in {"index": index, "logs": logs, **pages}.items():
        (docs / f"{name}.md").write_text(text)
    command = ["-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", "docs", ".", "build/docs"]
    return subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True, check=False, timeout=60)


def test_a_site_with_a_diagram(tmp_path: Path) -> None:
    logs = "# Logs\n\n[below](#a-segment)\n\n## A segment\n\n```mermaid\nflowchart LR\n  leader --> log\n```\n"
    done = build(tmp_path, INDEX, logs)
    assert done.returncode == 0, done.stderr
    assert 'class="mermaid' in (tmp_path / "build/docs/docs/logs.html").read_text()
    assert 'url=docs/index.html"' in (tmp_path / "build/docs/index.html").read_text()


@pytest.mark.parametrize(
    ("logs", "named"),
    [
        ("# Logs\n\n[gone](gone.md)\n", "gone.md"),
        ("# Logs\n\n[gone](index.md#gone)\n", "'docs/index': 'gone'"),
        ("# Logs\n\n[gone](#gone)\n", "'gone'"),
    ],
)
def test_a_dead_link_fails(tmp_path: Path, logs: str, named: str) -> None:
    done = build(tmp_path, INDEX, logs)
    assert done.returncode != 0 and "logs.md" in done.stderr and named in done.stderr


def test_a_missing_page_and_a_page_that_no_page_names_fail(tmp_path: Path) -> None:
    done = build(tmp_path, INDEX.replace("logs", "gone"), "# Logs\n")
    assert done.returncode != 0
    assert "docs/gone" in done.stderr, "the table of contents names it"
    assert "logs.md" in done.stderr, "in no table of contents"
