"""The acquisition of one fetch: its limits, the pieces that it acquires, and the entries of its response.

A piece is the part of an Available run that lies inside one record batch of the log. In batch_optimized mode whole
pieces are acquired until there are enough records, so that a batch is not split; record_limit acquires exactly as many
(KIP-1206). Records that fail repeatedly are acquired in ever smaller groups, so that one bad record does not bring a
whole batch to the delivery limit: see `_room_for_poison`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import Owner, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The owner and the limits of a fetch, from the request and from the group's configs."""

    owner: Owner
    max_records: int
    batch_size: int
    """Entries of the response are split at the first batch boundary after this many records."""
    record_limit: bool = False
    group: GroupLimits
    has_acquired: bool = False
    """Whether the fetch has acquired records of this share-partition before, from an earlier read of its log."""
    fetch_number: int = 0
    """The fetch's number; only acknowledgements made after its response was delivered apply to it."""
    client_id: str = ""
    """For the delivery history only."""


class AcquiredRecords(NamedTuple):
    """An entry of the response (`AcquiredRecords` of ShareFetchResponse)."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acquisition(NamedTuple):
    """The acquired records; `complete` means that this fetch must not acquire more from the share-partition."""

    records: list[AcquiredRecords]
    complete: bool


class Piece(NamedTuple):
    """Available offsets inside one record batch; `delivery_count` is the one before they are acquired."""

    first_offset: int
    last_offset: int
    delivery_count: int
    batch_length: int

    @property
    def length(self) -> int:
        return self.last_offset - self.first_offset + 1


def available_pieces(runs: Iterable[Run], batches: Sequence[tuple[int, int]], from_offset: int) -> Iterator[Piece]:
    """The parts of Available runs, at or after `from_offset`, that lie in batches (base, last offset); both ascend."""
    following = iter(runs)
    run = next(following, None)
    for base, last in batches:
        position = max(base, from_offset)
        while run is not None and run.last_offset < position:
            run = next(following, None)
        while run is not None and run.first_offset <= last:
            first = max(position, run.first_offset)
            yield Piece(first, min(last, run.last_offset), run.delivery_count, last - base + 1)
            if run.last_offset >= last:
                break
            run = next(following, None)
        if run is None:
            return


def choose(pieces: Iterable[Piece], limits: FetchLimits) -> tuple[list[Piece], bool]:
    """The pieces that the fetch acquires, and whether it must stop there."""
    chosen: list[Piece] = []
    total = 0
    following = iter(pieces)
    for piece in following:
        if total >= limits.max_records:
            return chosen, True
        first, last, count, batch_length = piece
        if _is_poison(count, limits):
            if chosen or limits.has_acquired:
                return chosen, True
            return _choose_poison(piece, following, limits), True
        if limits.record_limit:
            last = min(last, first + limits.max_records - total - 1)
        chosen.append(Piece(first, last, count, batch_length))
        total += last - first + 1
    return chosen, total >= limits.max_records


def _choose_poison(first_piece: Piece, following: Iterable[Piece], limits: FetchLimits) -> list[Piece]:
    """The group that contains the first of the records that failed repeatedly.

    Its records have the same delivery count. The records that failed with them may lie in many batches, since a
    producer may send each in a batch of its own. Kafka takes the size of the batch that it keeps in flight: what one
    fetch acquired, up to BatchSize.
    """
    if _is_last_attempt(first_piece.delivery_count, limits):
        return [first_piece._replace(last_offset=first_piece.first_offset)]
    wanted = max(first_piece.batch_length, limits.batch_size)
    failed, found = [first_piece], first_piece.length
    for piece in following:
        if found >= wanted or not _is_poison(piece.delivery_count, limits):
            break
        failed.append(piece)
        found += piece.length
    count = first_piece.delivery_count
    room = _room_for_poison(count, max(first_piece.batch_length, min(found, limits.batch_size)), limits)
    records_left = limits.max_records
    chosen: list[Piece] = []
    for piece in failed:
        if room <= 0 or records_left <= 0 or piece.delivery_count != count:
            break
        length = min(piece.length, room, records_left if limits.record_limit else room)
        chosen.append(piece._replace(last_offset=piece.first_offset + length - 1))
        room -= length
        records_left -= length
    return chosen


def _is_poison(delivery_count: int, limits: FetchLimits) -> bool:
    return delivery_count >= _throttle_from(limits) or _is_last_attempt(delivery_count, limits)


def _throttle_from(limits: FetchLimits) -> int:
    """The delivery count from which on records are acquired in ever smaller groups."""
    return max(2, (limits.group.delivery_count_limit + 1) // 2)


def _is_last_attempt(delivery_count: int, limits: FetchLimits) -> bool:
    return limits.group.delivery_count_limit > 2 and delivery_count >= limits.group.delivery_count_limit - 1


def _room_for_poison(delivery_count: int, size: int, limits: FetchLimits) -> int:
    """The size of a group of `size` records that were delivered `delivery_count` times without success.

    Half of them, then a quarter and so on.
    """
    return max(1, size >> (delivery_count - _throttle_from(limits) + 1))


def joined(chosen: Iterable[Piece]) -> list[Piece]:
    """The pieces, with adjacent ones of the same delivery count joined."""
    wider: list[Piece] = []
    for piece in chosen:
        if wider:
            first, last, count, length = wider[-1]
            if last + 1 == piece.first_offset and count == piece.delivery_count:
                wider[-1] = Piece(first, piece.last_offset, count, length)
                continue
        wider.append(piece)
    return wider


def add_entry(entries: list[AcquiredRecords], first: int, last: int, delivery_count: int, batch_size: int) -> None:
    """Adds the acquired part of one batch, joined to the previous entry until that has `batch_size` records."""
    if first > last:
        return
    if entries:
        before_first, before_last, before_count = entries[-1]
        joins = before_last + 1 == first and before_count == delivery_count
        if joins and before_last - before_first + 1 < batch_size:
            entries[-1] = AcquiredRecords(before_first, last, delivery_count)
            return
    entries.append(AcquiredRecords(first, last, delivery_count))
