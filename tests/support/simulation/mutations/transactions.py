"""Planted bugs of transactions: the last stable offset, the aborted ones, and markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kshare_coordinator import transaction_markers
from kshare_leader.log.producers import entries, state
from kshare_leader.log.producers.entries import ProducerEntry
from kshare_leader.log.producers.transactions import (
    AbortedEntry,
    AbortedTransactions,
    OpenTransaction,
    OpenTransactions,
)
from kshare_leader.ports import AbortedTransaction
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import WATCH_CATALOG, WRITE_TXN_MARKERS
from kshare_rpc.network import Method, Payload
from kshare_runtime.ports import Write
from support.simulation.mutations.mutation import Call, Mutation, Patch, planted
from support.simulation.mutations.planted_bug import UNNAMED, Focus, PlantedBug, with_configs, with_transactions


def _hide_isolation_levels(call: Call) -> Call:
    """The catalog that leaders see has no share.isolation.level."""

    async def changed(
        method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Any, memoryview]:
        answer, further = await call(method, request, payload, timeout_ms=timeout_ms)
        copy = coordinator_pb2.WatchCatalogResponse.FromString(answer.SerializeToString())
        for group in copy.group_configs:
            kept = [entry for entry in group.configs if entry.name != "share.isolation.level"]
            del group.configs[:]
            group.configs.extend(kept)
        return copy, further

    return changed


class _TurnMarkersRound:
    """Some transactions, or some partitions of one, end the other way than was asked."""

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, call: Call) -> Call:
        async def changed(
            method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
        ) -> tuple[Any, memoryview]:
            self._seen += 1
            copy = leader_pb2.WriteTxnMarkersRequest.FromString(request.SerializeToString())
            for marker in copy.markers:
                marker.committed ^= self._seen % 3 == 0
            return await call(method, copy, payload, timeout_ms=timeout_ms)

        return changed


CheckEpoch = Callable[[ProducerEntry | None, int, int], None]


def _nothing_is_open(oldest: object) -> Callable[[OpenTransactions], OpenTransaction | None]:
    """The last stable offset passes open transactions."""

    def changed(transactions: OpenTransactions) -> OpenTransaction | None:
        return None

    return changed


def _nothing_was_aborted(find: object) -> Callable[[AbortedTransactions, int, int], list[AbortedTransaction]]:
    """Readers are not told which transactions were aborted."""

    def changed(index: AbortedTransactions, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return []

    return changed


def _aborted_in_memory(writes: object) -> Callable[[AbortedTransactions, Iterable[AbortedEntry]], Iterator[Write]]:
    """The index of aborted transactions is only in memory."""

    def changed(index: AbortedTransactions, added: Iterable[AbortedEntry]) -> Iterator[Write]:
        return iter(())

    return changed


def _skip_a_partition(markers: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """A partition of a transaction with several gets the other marker."""

    def changed(*arguments: object) -> list[Any]:
        found = markers(*arguments)
        more = []
        for marker in found:
            if len(marker.partitions) > 1:
                other = leader_pb2.WriteTxnMarkersRequest.Marker()
                other.CopyFrom(marker)
                other.committed = not marker.committed
                del other.partitions[1:]
                del marker.partitions[0]
                more.append(other)
        return [*found, *more]

    return changed


def _fence_no_producer(check_epoch: CheckEpoch) -> CheckEpoch:
    """A producer of an older epoch writes on."""

    def changed(entry: ProducerEntry | None, producer_id: int, producer_epoch: int) -> None:
        return None

    return changed


PLANTED = (
    PlantedBug(
        name="the last stable offset passes open transactions",
        mutation=planted(Patch(OpenTransactions, "oldest", _nothing_is_open)),
        rules=("an aborted record was delivered", "delivered before it was committed"),
        seed=2,
    ),
    PlantedBug(
        name="readers are not told which transactions were aborted",
        mutation=planted(Patch(AbortedTransactions, "find", _nothing_was_aborted)),
        rules=("aborted, and yet committed", "committed without being asked to", "delivered before it was committed"),
        seed=2,
    ),
    PlantedBug(
        name="the index of aborted transactions does not survive a crash",
        mutation=planted(Patch(AbortedTransactions, "writes", _aborted_in_memory)),
        rules=("aborted, and yet committed", "committed without being asked to", "delivered before it was committed"),
        seed=2,
    ),
    PlantedBug(
        name="one partition of a transaction gets the other marker",
        mutation=planted(Patch(transaction_markers, "_markers", _skip_a_partition)),
        rules=("half of a transaction", "aborted, and yet committed", "committed, and yet aborted"),
        seed=3,
    ),
    PlantedBug(
        name="a producer of an older epoch writes on",
        mutation=planted(
            Patch(state, "check_epoch", _fence_no_producer), Patch(entries, "check_epoch", _fence_no_producer)
        ),
        rules=("a fenced producer was not refused", UNNAMED),
        words="a correct Produce to",
        focus=Focus(
            "transactions, whose partitions leaders do not verify at the coordinator",
            (with_transactions, with_configs(transaction_partition_verification_enable="false")),
        ),
        seed=6,
    ),
    PlantedBug(
        name="read_committed groups get all records",
        mutation=lambda: Mutation(calls={"leader": {WATCH_CATALOG: _hide_isolation_levels}}),
        rules=("an aborted record was delivered", "delivered before it was committed"),
        seed=2,
    ),
    PlantedBug(
        name="some transactions end the other way",
        mutation=lambda: Mutation(calls={"coordinator": {WRITE_TXN_MARKERS: _TurnMarkersRound()}}),
        rules=(
            "aborted, and yet committed",
            "committed, and yet aborted",
            "committed without being asked to",
            "half of a transaction",
        ),
        seed=2,
    ),
)
