"""Planted bugs of consumer groups, of ordinary fetches and of administration, and of who may acknowledge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from kshare_coordinator.machine.offsets import commits
from kshare_coordinator.machine.offsets.permissions import CommitVerdict
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.transactions import ending, offsets
from kshare_leader.handlers import fetch
from kshare_leader.machine import share_partition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import ALTER_SHARE_GROUP_OFFSETS, OFFSET_COMMIT
from kshare_rpc.network import Handler, Payload
from support.simulation.mutations.mutation import Mutation, Patch, at_role, planted
from support.simulation.mutations.planted_bug import UNNAMED, Focus, PlantedBug, with_activities, with_transactions
from support.simulation.plan import CONSUMER_GROUPS, OFFSETS_IN_TRANSACTIONS, READERS

FORGOTTEN_EVERY = 4


def _take_any_commit(check: Callable[..., CommitVerdict]) -> Callable[..., CommitVerdict]:
    """Generations, member epochs and member ids are not looked at."""
    return lambda *arguments: CommitVerdict(effects=check(*arguments).effects)


def _forget_commits(handler: Handler) -> Handler:
    """The coordinator says that it stored a commit, and does not."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % FORGOTTEN_EVERY:
            return await handler(request, payload)
        answer = pb.OffsetCommitResponse()
        for offset in request.offsets:
            answer.results.add(topic_id=offset.topic_id, topic_name=offset.topic_name, partition=offset.partition)
        return answer

    return changed


def _commit_all_transactions(end: Callable[..., list[Record]]) -> Callable[..., list[Record]]:
    """The offsets of a transaction take effect, however it ends."""
    return lambda state, producer_id, committed, *others: end(state, producer_id, True, *others)


def _abort_all_transactions(end: Callable[..., list[Record]]) -> Callable[..., list[Record]]:
    """The offsets of a transaction are dropped, however it ends."""
    return lambda state, producer_id, committed, *others: end(state, producer_id, False, *others)


def _with_ends(make: Callable[..., Any]) -> Callable[[], Mutation]:
    name = "records_at_transaction_end"
    return planted(Patch(ending, name, make), Patch(offsets, name, make))


def _pass_the_last_stable_offset(real: Callable[..., Any]) -> Callable[..., Any]:
    """A Fetch with isolation level read_committed has records of open transactions."""
    return lambda log, offset, max_bytes, *, at_least_one: log.read(offset, max_bytes, at_least_one=at_least_one)


OF_CONSUMERS = Focus(
    "consumer groups that commit in transactions",
    (with_activities(CONSUMER_GROUPS, OFFSETS_IN_TRANSACTIONS),),
)
OF_READERS = Focus("readers of the log, and transactions", (with_activities(READERS), with_transactions))


def _alter_nothing(handler: Handler) -> Handler:
    """The coordinator says that it altered the offsets of a share group, and does not."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        answer = pb.AlterShareGroupOffsetsResponse()
        for topic in request.topics:
            for partition in topic.partitions:
                answer.results.add(topic_name=topic.topic_name, partition=partition.partition)
        return answer

    return changed


def _let_anyone_acknowledge(not_held: Callable[..., str | None]) -> Callable[..., str | None]:
    """The leader does not ask who holds a record."""

    def changed(run: Any, owner: Any, *others: Any) -> str | None:
        return not_held(run, run.owner, *others)

    return changed


PLANTED = (
    PlantedBug(
        name="the coordinator forgets commits that it confirmed",
        mutation=at_role("coordinator", OFFSET_COMMIT, _forget_commits),
        rules=("a commit was lost",),
        seed=2,
    ),
    PlantedBug(
        name="the coordinator takes commits of members that it does not know",
        mutation=planted(Patch(commits, "check_commit", _take_any_commit)),
        rules=("a forged commit was taken", "a commit went back", "a commit was lost"),
        seed=3,
    ),
    PlantedBug(
        name="offsets of aborted transactions take effect",
        mutation=_with_ends(_commit_all_transactions),
        rules=("an aborted commit was found",),
        focus=OF_CONSUMERS,
        seed=1,
    ),
    PlantedBug(
        name="offsets of committed transactions are dropped",
        mutation=_with_ends(_abort_all_transactions),
        rules=("a commit was lost",),
        focus=OF_CONSUMERS,
        seed=1,
    ),
    PlantedBug(
        name="an ordinary fetch passes the last stable offset",
        mutation=planted(Patch(fetch, "_read_committed", _pass_the_last_stable_offset)),
        rules=("an aborted record was read",),
        focus=OF_READERS,
        seed=1,
    ),
    PlantedBug(
        name="the leader takes acknowledgements of anyone",
        mutation=planted(Patch(share_partition, "not_held", _let_anyone_acknowledge)),
        rules=("a forged acknowledgement was taken", "acknowledged without holding it"),
        seed=1,
    ),
    PlantedBug(
        name="the coordinator says that it altered offsets, and does not",
        mutation=at_role("coordinator", ALTER_SHARE_GROUP_OFFSETS, _alter_nothing),
        rules=("administration was lost", UNNAMED),
        words="the start offsets of administered",
        seed=2,
    ),
)
