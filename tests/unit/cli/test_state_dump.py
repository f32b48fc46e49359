"""The output of `kshare state dump`: its strip of offsets against a naive one, its words, its JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.commands.state.dump import as_dict, describe, legend, sentence, strip
from kshare.commands.state.group_state import Run, SharePartitionState
from kshare_core.identifiers import SharePartitionKey

KEY = SharePartitionKey("group", bytes(range(16)), 3)


def state(start_offset: int, *runs: tuple[int, int, int, int], **fields: Any) -> SharePartitionState:
    return SharePartitionState(
        topic="orders", key=KEY, start_offset=start_offset, runs=[Run(*run) for run in runs], **fields
    )


WORKED = state(
    100, (100, 104, 2, 1), (105, 107, 0, 2), (109, 109, 4, 5), (110, 111, 3, 5), (112, 112, 0, 12), lag=6, state_epoch=2
)


def lines(found: SharePartitionState, width: int = 80, shown_runs: int = 20) -> list[str]:
    return [line.plain for line in describe(found, width=width, shown_runs=shown_runs)]


def test_a_share_partition_in_words_and_pictures() -> None:
    assert lines(WORKED) == [
        "orders-3  start 100  end 112  lag 6  complete ?  state epoch 2  leader epoch ?",
        "  13 offsets from 100 to 112: 5 acknowledged, 3 available (delivered 2 times), 1 without a state, 1 archived, "
        "2 archiving, 1 available (delivered 12 times)",
        "  |#####222.x!!+|",
        "  # 100-104: acknowledged, delivered once",
        "  2 105-107: available, delivered 2 times",
        "  x 109: archived, delivered 5 times",
        "  ! 110-111: archiving, delivered 5 times",
        "  + 112: available, delivered 12 times",
        "",
    ]
    assert lines(WORKED, shown_runs=1)[3:] == [
        "  # 100-104: acknowledged, delivered once",
        "  … and 4 more runs (--runs 0 shows all)",
        "",
    ]
    assert lines(WORKED, shown_runs=0) == lines(WORKED)


def test_the_legend_has_each_character_once() -> None:
    found = [line.plain.split("  ")[0] for line in legend([WORKED, WORKED, state(5), state(-1)])]
    assert sorted(found) == sorted("#2.x!+")


def test_a_state_that_could_not_be_read_is_told() -> None:
    unread = SharePartitionState(topic="orders", key=KEY, problem="NOT_COORDINATOR: nobody")
    assert lines(unread) == ["orders-3", "  cannot be read: NOT_COORDINATOR: nobody"]
    assert list(legend([unread])) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (state(-1), "nothing was delivered yet; share.auto.offset.reset decides the start offset"),
        (state(0), "no record has a stored state"),
        (state(7), "all records before offset 7 are complete; later records have no stored state"),
        (state(7, (3, 5, 2, 1)), "all records before offset 7 are complete; later records have no stored state"),
        (state(7, (3, 7, 2, 1)), "1 offset from 7 to 7: 1 acknowledged"),
        (state(7, (7, 8, 9, 1)), "2 offsets from 7 to 8: 2 state 9"),
    ],
)
def test_sentences(found: SharePartitionState, words: str) -> None:
    assert sentence(found) == words
    assert lines(found)[1] == f"  {words}"


def test_json_has_null_for_what_is_not_known() -> None:
    assert as_dict(state(7, (7, 8, 2, 1), leader_epoch=4)) == {
        "topic": "orders",
        "topic_id": "AAECAwQFBgcICQoLDA0ODw",
        "partition": 3,
        "error": None,
        "start_offset": 7,
        "end_offset": 8,
        "state_epoch": None,
        "leader_epoch": 4,
        "delivery_complete_count": None,
        "lag": None,
        "runs": [{"first_offset": 7, "last_offset": 8, "state": "acknowledged", "delivery_count": 1}],
    }


CHARACTERS = {2: "#", 3: "!", 4: "x"}
runs_with_gaps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from([0, 2, 3, 4]), st.integers(0, 12)),
    min_size=1,
    max_size=30,
)


@given(start_offset=st.integers(0, 1 << 40), pieces=runs_with_gaps, width=st.integers(1, 90))
def test_a_strip_shows_what_most_offsets_of_a_column_are(
    start_offset: int, pieces: list[tuple[int, int, int, int]], width: int
) -> None:
    naive: list[str] = []
    runs: list[tuple[int, int, int, int]] = []
    for gap, length, number, count in pieces:
        naive += "." * gap
        first = start_offset + len(naive)
        available = str(count) if count <= 9 else "+"
        naive += CHARACTERS.get(number, available) * length
        runs.append((first, first + length - 1, number, count))
    shown = strip(state(start_offset, *runs), width).plain
    columns = min(width, len(naive))
    assert len(shown) == columns
    for column, character in enumerate(shown):
        covered = naive[column * len(naive) // columns : (column + 1) * len(naive) // columns]
        # Available offsets with different delivery counts above 9 share a character, and count together in the naive.
        counts = Counter(covered)
        assert counts[character] == max(counts.values())


def test_a_strip_does_not_look_at_single_offsets() -> None:
    wide = state(0, (0, 1 << 60, 2, 1), ((1 << 60) + 1, 1 << 61, 0, 1))
    assert strip(wide, 10).plain == "#####11111"
