"""Planted bugs of share sessions at gateways and of their ends at leaders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kshare_core.identifiers import TopicPartition
from kshare_gateway.share.sessions import ListedPartition, ShareSession, ShareSessionKey, ShareSessionTable
from kshare_leader.machine.interval_map import Owner
from kshare_leader.share.pending_writes import Stored
from kshare_leader.share.served_partition import ServedPartition
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import UNNAMED, Focus, PlantedBug, often, only_faults

Expect = Callable[[ShareSessionTable, ShareSessionKey, int, int], ShareSession]
Update = Callable[
    [ShareSessionTable, ShareSessionKey, int, Iterable[ListedPartition], Iterable[TopicPartition], int], ShareSession
]
ReleaseUntil = Callable[[ServedPartition, Owner, int], Stored | None]
TakeBack = Callable[[ServedPartition, Owner, Collection[int]], None]


def _any_epoch(expect: Expect) -> Expect:
    """A repeated or forged request of a session is taken, whatever its epoch."""

    def changed(table: ShareSessionTable, key: ShareSessionKey, epoch: int, connection_id: int) -> ShareSession:
        session = table.get(key)
        return expect(table, key, epoch if session is None else session.next_epoch, connection_id)

    return changed


def _no_partition_joins(update: Update) -> Update:
    """A partition that is added to an open session is never fetched."""

    def changed(
        table: ShareSessionTable,
        key: ShareSessionKey,
        epoch: int,
        listed: Iterable[ListedPartition],
        forgotten: Iterable[TopicPartition],
        connection_id: int,
    ) -> ShareSession:
        return update(table, key, epoch, [one._replace(joins=False) for one in listed], forgotten, connection_id)

    return changed


def _release_newer_sessions(release_until: ReleaseUntil) -> ReleaseUntil:
    """The late end of a member's session releases what its newer session holds."""

    def changed(served: ServedPartition, owner: Owner, last_fetch_number: int) -> Stored | None:
        return served.release(owner.__eq__)

    return changed


def _take_back_more(take_back: TakeBack) -> TakeBack:
    """Where the answer of one fetch was lost, the records of the fetches before it are taken back too."""

    def changed(served: ServedPartition, owner: Owner, fetch_numbers: Collection[int]) -> None:
        take_back(served, owner, range(min(fetch_numbers) - 20, max(fetch_numbers) + 1) if fetch_numbers else ())

    return changed


PLANTED = (
    PlantedBug(
        name="the epoch of a share session is not compared",
        mutation=planted(Patch(ShareSessionTable, "_expect", _any_epoch)),
        rules=(UNNAMED,),
        words="was taken; the session is at",
        seed=1,
    ),
    PlantedBug(
        name="a partition that is added to an open session does not join",
        mutation=planted(Patch(ShareSessionTable, "update", _no_partition_joins)),
        rules=("not drained",),
        seed=19,
    ),
    PlantedBug(
        name="the late end of a session releases what the newer one holds",
        mutation=planted(Patch(ServedPartition, "release_until", _release_newer_sessions)),
        rules=("two holders", "acknowledgement refused without a reason"),
        focus=Focus(
            "faults of links and connections, missing acknowledgements often",
            (
                only_faults("cut-clients", "drops", "cut", "slow-link", "slow-host", "one-way"),
                often("missing acknowledgements"),
            ),
        ),
        seed=130,
    ),
    PlantedBug(
        name="a lost answer takes back the records of earlier fetches too",
        mutation=planted(Patch(ServedPartition, "take_back", _take_back_more)),
        rules=("two holders", "delivery count does not grow", "acknowledgement refused without a reason"),
        focus=Focus(
            "streams are cut, deferred acknowledgements often",
            (only_faults("cut", "drops", "slow-link"), often("deferred acknowledgements")),
        ),
        seed=1,
    ),
)
