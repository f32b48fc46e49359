"""`kshare state dump GROUP`: the durable state of a share group as text and as a strip of characters.

Each share-partition has its numbers, a sentence, a strip from its start offset to its end offset, and its runs. A strip
has one character for each offset. If there are more offsets than columns, a character stands for a stretch of offsets
and shows its most frequent state. At a terminal the characters have colours.

Locks are not stored, so an acquired record is shown as an offset without a state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.state.group_state import Run, SharePartitionState, read_group_state
from kshare.failure import CommandFailed
from kshare_core.identifiers import topic_id_text
from kshare_core.states import RecordState

STRIP_MARGIN = 4
LARGEST_DIGIT = 9


class Look(NamedTuple):
    """How an offset is shown in a strip."""

    character: str
    style: str
    meaning: str


_NO_STATE = Look(".", "dim", "no state: acquired by a member, or not delivered yet")
_LOOKS: dict[int, Look] = {
    RecordState.ACKNOWLEDGED: Look("#", "black on green", "acknowledged"),
    RecordState.ARCHIVED: Look("x", "white on red", "archived"),
    RecordState.ARCHIVING: Look("!", "white on magenta", "archiving: being written to the dead-letter topic"),
}
_AVAILABLE_STYLES = (
    "black on bright_cyan",
    "black on cyan",
    "white on blue",
    "black on yellow",
    "black on dark_orange",
)
"""By delivery count; the last one for all larger counts."""


def dump_group_state(
    bootstrap: str,
    group_id: str,
    topic: str | None,
    *,
    as_json: bool,
    shown_runs: int,
    console: Console,
    properties: Properties = NO_PROPERTIES,
) -> None:
    """Prints the state of a group's share-partitions; CommandFailed if one of them could not be read.

    `shown_runs` is how many runs are listed for each share-partition, 0 for all; JSON always has all.
    """
    states = read_group_state(bootstrap, group_id, topic, properties)
    if as_json:
        text = json.dumps({"group": group_id, "share_partitions": [as_dict(state) for state in states]}, indent=2)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        for state in states:
            for line in describe(state, width=console.width, shown_runs=shown_runs):
                console.print(line, soft_wrap=True)
        for line in legend(states):
            console.print(line, soft_wrap=True)
    unread = [state for state in states if state.problem is not None]
    if unread:
        raise CommandFailed(f"{len(unread)} of {len(states)} share-partitions could not be read: {unread[0].problem}")


def as_dict(state: SharePartitionState) -> dict[str, Any]:
    """A share-partition as JSON; unknown values are null."""
    return {
        "topic": state.topic,
        "topic_id": topic_id_text(state.key.topic_id),
        "partition": state.key.partition,
        "error": state.problem,
        "start_offset": _known(state.start_offset),
        "end_offset": _known(state.end_offset),
        "state_epoch": _known(state.state_epoch),
        "leader_epoch": _known(state.leader_epoch),
        "delivery_complete_count": _known(state.delivery_complete_count),
        "lag": _known(state.lag),
        "runs": [
            {
                "first_offset": run.first_offset,
                "last_offset": run.last_offset,
                "state": state_name(run.state),
                "delivery_count": run.delivery_count,
            }
            for run in state.runs
        ],
    }


def describe(state: SharePartitionState, *, width: int, shown_runs: int) -> Iterator[Text]:
    """The lines about one share-partition."""
    title = Text(f"{state.topic}-{state.key.partition}", style="bold")
    if state.problem is not None:
        yield title
        yield Text(f"  cannot be read: {state.problem}", style="red")
        return
    yield title + Text(
        f"  start {_shown(state.start_offset)}  end {_shown(state.end_offset)}  lag {_shown(state.lag)}"
        f"  complete {_shown(state.delivery_complete_count)}"
        f"  state epoch {_shown(state.state_epoch)}  leader epoch {_shown(state.leader_epoch)}",
        style="not bold",
    )
    yield Text(f"  {sentence(state)}")
    if _window(state):
        yield Text("  |") + strip(state, max(1, width - STRIP_MARGIN)) + Text("|")
    yield from _run_lines(state.runs, shown_runs)
    yield Text("")


def sentence(state: SharePartitionState) -> str:
    """A summary of the state in one sentence."""
    if state.start_offset < 0:
        return "nothing was delivered yet; share.auto.offset.reset decides the start offset"
    if not _window(state):
        if not state.start_offset:
            return "no record has a stored state"
        return f"all records before offset {state.start_offset} are complete; later records have no stored state"
    counts: dict[str, int] = {}
    for run, look in _covered(state):
        words = "without a state" if look is _NO_STATE else _in_words(run)
        counts[words] = counts.get(words, 0) + run.count
    parts = ", ".join(f"{count} {words}" for words, count in counts.items())
    offsets = "1 offset" if _window(state) == 1 else f"{_window(state)} offsets"
    return f"{offsets} from {state.start_offset} to {state.end_offset}: {parts}"


def strip(state: SharePartitionState, width: int) -> Text:
    """At most `width` characters for the offsets from the start offset to the end offset, which must not be empty."""
    window = _window(state)
    columns = min(width, window)
    text = Text()
    covered = _covered(state)
    piece = next(covered)
    for column in range(columns):
        first = state.start_offset + column * window // columns
        last = state.start_offset + (column + 1) * window // columns - 1
        counts: dict[Look, int] = {}
        while True:
            run, look = piece
            common = min(last, run.last_offset) - max(first, run.first_offset) + 1
            if common > 0:
                counts[look] = counts.get(look, 0) + common
            if run.last_offset >= last:
                break
            piece = next(covered)
        look = max(counts, key=lambda each: counts[each])
        text.append(look.character, style=look.style)
    return text


def legend(states: Sequence[SharePartitionState]) -> Iterator[Text]:
    """One line for each character used in the strips."""
    looks: dict[Look, None] = {}
    for state in states:
        if state.problem is None:
            looks.update(dict.fromkeys(look for _, look in _covered(state)))
    for look in sorted(looks):
        yield Text(look.character, style=look.style) + Text(f"  {look.meaning}", style="not bold")


def state_name(state: int) -> str:
    """A name such as "acknowledged"; "state N" for an unknown number."""
    try:
        return RecordState(state).name.lower()
    except ValueError:
        return f"state {state}"


def _look(run: Run) -> Look:
    if run.state != RecordState.AVAILABLE:
        return _LOOKS.get(run.state) or _unknown(run.state)
    count = run.delivery_count
    style = _AVAILABLE_STYLES[min(count, len(_AVAILABLE_STYLES) - 1)]
    if count > LARGEST_DIGIT:
        return Look("+", style, f"available, delivered more than {LARGEST_DIGIT} times")
    return Look(str(count), style, f"available, delivered {_times(count)}")


def _unknown(state: int) -> Look:
    return Look("?", "reverse", f"{state_name(state)}, unknown to this version")


def _in_words(run: Run) -> str:
    if run.state == RecordState.AVAILABLE:
        return f"available (delivered {_times(run.delivery_count)})"
    return state_name(run.state)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _window(state: SharePartitionState) -> int:
    """Offsets from the start offset to the end offset."""
    return max(0, state.end_offset - state.start_offset + 1) if state.runs else 0


def _covered(state: SharePartitionState) -> Iterator[tuple[Run, Look]]:
    """Runs without gaps from the start offset to the end offset."""
    position = state.start_offset
    for run in state.runs:
        if run.last_offset < position:
            continue
        if run.first_offset > position:
            yield Run(position, run.first_offset - 1, -1, 0), _NO_STATE
        first = max(position, run.first_offset)
        yield Run(first, run.last_offset, run.state, run.delivery_count), _look(run)
        position = run.last_offset + 1


def _run_lines(runs: Sequence[Run], shown_runs: int) -> Iterator[Text]:
    shown = runs[:shown_runs] if shown_runs else runs
    for run in shown:
        look = _look(run)
        where = f"{run.first_offset}" if run.count == 1 else f"{run.first_offset}-{run.last_offset}"
        line = Text("  ") + Text(look.character, style=look.style)
        yield line + Text(
            f" {where}: {state_name(run.state)}, delivered {_times(run.delivery_count)}", style="not bold"
        )
    if len(shown) < len(runs):
        yield Text(f"  … and {len(runs) - len(shown)} more runs (--runs 0 shows all)")


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _shown(number: int) -> str:
    return "?" if number < 0 else str(number)
