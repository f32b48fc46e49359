"""Scripts that the shrinker made from failing seeds: each still shows its planted bug, and nothing without it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.simulation.mutations.catalogue import BY_NAME
from support.simulation.scenario import run_script
from support.simulation.seeds.script import read_script, write_script
from support.simulation.seeds.shrink import signatures

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.toml"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_kept_script_breaks_its_rule_only_with_the_bug(path: Path) -> None:
    kept = read_script(path)
    outcome = run_script(kept.script)
    assert not outcome.failed, outcome.report()
    if kept.mutation:
        assert kept.rule in signatures(run_script(kept.script, BY_NAME[kept.mutation].mutation()))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_written_as_it_was_read(path: Path, tmp_path: Path) -> None:
    kept = read_script(path)
    copy = tmp_path / "copy.toml"
    copy.write_text(write_script(kept.script, "A copy.", rule=kept.rule, mutation=kept.mutation))
    assert read_script(copy) == kept
