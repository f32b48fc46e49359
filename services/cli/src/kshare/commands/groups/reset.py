"""`kshare groups reset`: new start offsets for a share group that has no members."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach, topic_of
from kshare.commands.groups.group_requests import alter_share_offsets, list_groups, read_share_offsets
from kshare.commands.offsets import EARLIEST, LATEST, NamedPartition, look_up_offsets
from kshare.failure import BAD_USE, CommandFailed
from kshare_core.whole_numbers import LARGEST_INT, whole_number
from kshare_wire.generated.responses.metadata import MetadataResponse


class Target(NamedTuple):
    """The requested start: a `timestamp_ms` (or EARLIEST, LATEST), or an `offset`, limited to the log's offsets."""

    timestamp_ms: int = LATEST
    offset: int | None = None


class NewOffset(NamedTuple):
    """A partition's start offset before (-1: none) and after the reset."""

    topic: str
    partition: int
    before: int
    after: int


def reset_offsets(
    bootstrap: str,
    group_id: str,
    texts: Sequence[str],
    target: Target,
    *,
    all_topics: bool,
    dry_run: bool,
    note: Callable[[str], None],
    properties: Properties = NO_PROPERTIES,
) -> list[NewOffset]:
    """Resets the offsets (with `dry_run`, only computes them); `texts` are TOPIC or TOPIC:0,1. CommandFailed.

    A group that does not exist is created by that, which may be a typo: it is noted.
    """
    metadata = reach(bootstrap, properties)
    before = {
        (offset.topic, offset.partition): offset.start_offset
        for offset in read_share_offsets(bootstrap, group_id, properties)
    }
    partitions = sorted(before) if all_topics else _named(metadata, texts)
    if not partitions:
        raise CommandFailed(f"group {group_id} has no offsets; use --topic to name topics", BAD_USE)
    after = _offsets(bootstrap, partitions, target, properties)
    if not before and (text := _of_a_new_group(bootstrap, group_id, properties)):
        note(text)
    if not dry_run:
        alter_share_offsets(bootstrap, group_id, after, properties)
    return [NewOffset(*each, before.get(each, -1), after[each]) for each in partitions]


def _of_a_new_group(bootstrap: str, group_id: str, properties: Properties) -> str:
    """What to tell about a group that does not exist; empty: it does."""
    groups = [str(group.group_id) for group in list_groups(bootstrap, properties)]
    if group_id in groups:
        return ""
    near = difflib.get_close_matches(group_id, groups, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"group {group_id} does not exist yet; its start offsets create it{hint}"


def _named(metadata: MetadataResponse, texts: Sequence[str]) -> list[NamedPartition]:
    found: dict[NamedPartition, None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        known = {int(partition.partition_index) for partition in topic_of(metadata, name).partitions}
        wanted = sorted(known)
        if colon:
            given = [whole_number(number.strip(), LARGEST_INT) for number in numbers.split(",")]
            wanted = [number for number in given if number is not None]
            if len(wanted) < len(given):
                raise CommandFailed(f"--topic must be TOPIC or TOPIC:0,1,…, found {text!r}", BAD_USE)
        for partition in wanted:
            if partition not in known:
                raise CommandFailed(
                    f"topic {name} has no partition {partition}; it has {len(known)} partitions", BAD_USE
                )
            found[name, partition] = None
    return list(found)


def _offsets(
    bootstrap: str, partitions: Sequence[NamedPartition], target: Target, properties: Properties
) -> dict[NamedPartition, int]:
    if target.offset is None:
        found = look_up_offsets(bootstrap, partitions, target.timestamp_ms, properties)
        if -1 not in found.values():
            return found
        ends = look_up_offsets(bootstrap, partitions, LATEST, properties)  # all records are older than the timestamp
        return {each: ends[each] if offset == -1 else offset for each, offset in found.items()}
    first = look_up_offsets(bootstrap, partitions, EARLIEST, properties)
    end = look_up_offsets(bootstrap, partitions, LATEST, properties)
    return {each: min(max(target.offset, first[each]), end[each]) for each in partitions}
