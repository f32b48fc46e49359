"""References in documents and docstrings: dead ones are found, and others are left alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.house import references
from support.house.references import Repository, link_problems_of, problems_of

FILES = frozenset(
    {
        "README.md",
        "docs/logs.md",
        "libs/core/src/kshare_core/errors.py",
        "services/leader/src/kshare_leader/log/retention.py",
        "tests/e2e/share/test_fetch_like_kafka.py",
    }
)
DOCUMENTS = {"README.md": "# kshare\n", "docs/logs.md": "# Logs\n## 2. Retention\n### A log that lost records\n"}
REPOSITORY = Repository(FILES, DOCUMENTS, "STAMP := x\nsetup: $(STAMP)\n\nbench-machine: setup\n")


@pytest.mark.parametrize(
    "text",
    [
        "`docs/logs.md`, `kshare_leader/log/`, `log/retention.py`, `retention.py`, `kshare_leader/log/retention`",
        "`tests/e2e/*_like_kafka.py`, `services/<role>/src/kshare_leader/log/`, `services/…/retention.py`",
        "`kshare_core.errors`, `kshare_core.errors.KafkaError`, `kshare_other.module`",
        "`/var/lib/kshare/data.md`, `text/plain`, `a < b`, `kshare.request.max.elements`, `data/`",
        "`make setup`, make sure\n\n    make bench-machine\n",
        "docs/logs.md section 2, KIP-932 section 7",
        "```mermaid\n`docs/gone.md`\n```",
    ],
)
def test_references_that_hold(text: str) -> None:
    assert list(problems_of("README.md", text, REPOSITORY)) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("see `docs/gone.md`", "`docs/gone.md`"),
        ("see `retentions.py`", "`retentions.py`"),
        ("see `kshare_leader/logs/`", "`kshare_leader/logs/`"),
        ("see `tests/e2e/*_like_rabbitmq.py`", "`tests/e2e/*_like_rabbitmq.py`"),
        ("see `kshare_core.mistakes.KafkaError`", "kshare_core.mistakes"),
        ("run `make benches`", "benches"),
        ("run\n\n    make stamp\n", "stamp"),
        ("`docs/logs.md` section 3", "section 3"),
        ("gone.md, section 2", "section 2"),
    ],
)
def test_dead_references(text: str, named: str) -> None:
    (problem,) = problems_of("README.md", text, REPOSITORY)
    assert problem.startswith("README.md: ") and named in problem


def test_links_are_relative_to_their_document() -> None:
    text = "[a](../README.md) [b](logs.md#a-log-that-lost-records) [c](#logs) [d](https://kafka.apache.org/x.md) [e](.)"
    assert list(link_problems_of("docs/logs.md", text, REPOSITORY, FILES)) == []


@pytest.mark.parametrize("link", ["README.md", "../docs/gone.md", "logs.md#lost", "#retention"])
def test_dead_links(link: str) -> None:
    (problem,) = link_problems_of("docs/logs.md", f"[text]({link})", REPOSITORY, FILES)
    assert link in problem


def test_a_dead_reference_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "Makefile").write_text("check:\n")
    (tmp_path / "module.py").write_text('"""Read `other.py`, then `make check`."""\n')
    monkeypatch.setattr(references, "ROOT", tmp_path)
    assert references.main() == 1
    assert capsys.readouterr().err == "module.py: there is no file or folder `other.py`\n"
    (tmp_path / "other.py").write_text('class Other:\n    """Run `kshare group list`."""\n')
    assert references.main() == 1
    assert capsys.readouterr().err == "other.py: there is no command group (kshare group list)\n"
    (tmp_path / "other.py").write_text('class Other:\n    """Run `kshare groups list`."""\n')
    assert references.main() == 0
