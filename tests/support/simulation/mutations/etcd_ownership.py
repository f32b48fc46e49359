"""Planted bugs of coordinators that share their metadata in etcd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kshare_coordinator.metadata.etcd.port import Compare, Delete, Put, TransactionAnswer
from kshare_coordinator.metadata.ownership import Ownership
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import (
    Focus,
    PlantedBug,
    on_etcd,
    only_faults,
    with_activities,
    with_transactions,
)
from support.simulation.plan import ADMINISTRATION, CONSUMER_GROUPS

Transact = Callable[..., Awaitable[TransactionAnswer]]


def _compare_nothing(transact: Transact) -> Transact:
    """A coordinator takes partitions of the metadata, and writes to them, whoever owns them."""

    def changed(
        ownership: Ownership,
        compares: Sequence[Compare],
        then: Sequence[Put | Delete],
        otherwise: Sequence[bytes] = (),
    ) -> Awaitable[TransactionAnswer]:
        return transact(ownership, (), then, otherwise)

    return changed


PLANTED = (
    PlantedBug(
        name="a coordinator writes to metadata that it does not own",
        mutation=planted(Patch(Ownership, "transact", _compare_nothing)),
        rules=(
            "an entry of the metadata was overwritten",
            "two leaders",
            "state went back",
            "a commit was lost",
            "administration was lost",
            "committed, and yet aborted",
            "half of a transaction",
        ),
        focus=Focus(
            "three coordinators on etcd, full links to it, transactions, consumer groups, administration",
            (
                on_etcd,
                with_transactions,
                with_activities(CONSUMER_GROUPS, ADMINISTRATION),
                only_faults("etcd-full-link", "pause", "crash"),
            ),
        ),
        seed=2,
    ),
)
