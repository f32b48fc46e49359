"""Clients of the classic protocol that keep to it, in groups that may be classic or consumer groups (KIP-848).

`ClassicMember` is an eager client, which gives everything up before it joins, or a cooperative one, which keeps what it
has and says so. `step` does what is next: join, sync, heartbeat. The leader of a classic group assigns for all.

`owned` is what it consumes right now, as pairs of topic id and partition.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kshare_coordinator.machine.groups.classic.consumer_protocol import assignment_bytes, assignment_of, subscription_of
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.groups.classic_driver import ClassicGroupDriver, subscription

Partition = tuple[bytes, int]
Named = tuple[str, int]


def owning_subscription(topics: Sequence[str], owned: Sequence[Named], version: int = 1) -> bytes:
    """ConsumerProtocolSubscription from version 1 on: with partitions that are owned, a generation, a rack."""
    names: dict[str, list[int]] = {}
    for name, number in owned:
        names.setdefault(name, []).append(number)
    parts = [struct.pack(">h", version), subscription(*topics)[2:], struct.pack(">i", len(names))]
    for name, numbers in names.items():
        encoded = name.encode()
        parts += [
            struct.pack(">h", len(encoded)),
            encoded,
            struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers),
        ]
    if version >= 2:
        parts.append(struct.pack(">i", 7))
    if version >= 3:
        parts.append(struct.pack(">h", 4) + b"rack")
    return b"".join(parts)


class ClassicMember:
    """See the module's text. `instance_id` is empty for a dynamic member."""

    def __init__(
        self, driver: ClassicGroupDriver, topics: Sequence[str], *, cooperative: bool, instance_id: str = ""
    ) -> None:
        self._driver = driver
        self._topics = list(topics)
        self._cooperative = cooperative
        self.instance_id = instance_id
        self.member_id = ""
        self.owned: set[Partition] = set()
        self.is_settled = False
        """Whether it joined and synced, and heard of nothing else since."""
        self._generation_id = -1
        self._joined: pb.JoinGroupResponse | None = None
        self._call: int | None = None

    def step(self, *, lost: bool = False) -> None:
        """`lost`: the answer to a join does not arrive; the client knows nothing of it, and joins again."""
        self.hear()
        if self._call is not None:
            return
        if self._joined is not None:
            self._sync()
        elif self.is_settled:
            self._heartbeat()
        else:
            self._join(lost)
        self.hear()

    def leave(self) -> None:
        if self.member_id:
            self._driver.leave((self.member_id, self.instance_id))
        self.stop()

    def stop(self) -> None:
        """It knows that it is not in the group any more."""
        self._give_up()
        self.member_id = ""
        self._call = None

    def connection_lost(self) -> None:
        """What waited is never answered."""
        if self._call is not None:
            self._call, self._joined, self.is_settled = None, None, False

    def _give_up(self) -> None:
        self.owned = set()
        self.is_settled, self._joined = False, None

    def _join(self, lost: bool) -> None:
        if not self._cooperative:
            self.owned = set()
        name = "cooperative-sticky" if self._cooperative else "range"
        metadata = subscription(*self._topics)
        if self._cooperative:
            metadata = owning_subscription(self._topics, sorted(map(self._named, self.owned)))
        call = self._driver.join(self.member_id, instance=self.instance_id, protocols=[(name, metadata)])
        if not lost or self._driver.join_answer(call) is None:
            self._call = call

    def hear(self) -> None:
        """What came since the last step."""
        if self._call is None or self._call not in self._driver.answers:
            return
        answer = self._driver.answers[self._call]
        self._call = None
        if isinstance(answer, pb.JoinGroupResponse):
            self._hear_join(answer)
        else:
            self._hear_sync(answer)

    def _hear_join(self, answer: pb.JoinGroupResponse) -> None:
        code = E(answer.error_code)
        if code in (E.NONE, E.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
        if code is E.NONE:
            self._generation_id, self._joined = answer.generation_id, answer
        elif code is not E.MEMBER_ID_REQUIRED:
            self._refused(code)

    def _sync(self) -> None:
        answer = self._joined
        assert answer is not None
        assignments = None
        if answer.leader == self.member_id:
            assignments = self._assigned_by_leader(answer)
        self._call = self._driver.sync(
            self.member_id, self._generation_id, assignments, instance=self.instance_id, protocol_type="consumer"
        )

    def _hear_sync(self, answer: pb.SyncGroupResponse) -> None:
        self._joined = None
        if answer.error_code:
            self._refused(E(answer.error_code))
            return
        found = assignment_of(answer.assignment)
        assert found is not None
        wanted = {self._partition((name, number)) for name, numbers in found.partitions for number in numbers}
        must_join_again = self._cooperative and not self.owned <= wanted
        self.owned = wanted
        self.is_settled = not must_join_again

    def _heartbeat(self) -> None:
        code = self._driver.heartbeat(self.member_id, self._generation_id, instance=self.instance_id)
        if code is not E.NONE:
            self._refused(code)

    def _refused(self, code: E) -> None:
        """REBALANCE_IN_PROGRESS: it joins again. Otherwise what it had is lost."""
        assert code in (
            E.REBALANCE_IN_PROGRESS,
            E.ILLEGAL_GENERATION,
            E.UNKNOWN_MEMBER_ID,
            E.FENCED_INSTANCE_ID,
            E.INCONSISTENT_GROUP_PROTOCOL,
        ), code
        self.is_settled = False
        if code is E.REBALANCE_IN_PROGRESS:
            return
        self._give_up()
        if code is not E.ILLEGAL_GENERATION:
            self.member_id = ""

    def _named(self, partition: Partition) -> Named:
        return self._driver.coordinator.state.topics[partition[0]].name, partition[1]

    def _partition(self, named: Named) -> Partition:
        return self._driver.coordinator.state.topic_ids[named[0]], named[1]

    def _assigned_by_leader(self, answer: pb.JoinGroupResponse) -> dict[str, bytes]:
        """In turn; a cooperative leader gives nobody what another member still has."""
        owners: dict[Named, str] = {}
        for member in answer.members:
            said = subscription_of(member.metadata)
            assert said is not None
            for name, numbers in said.owned:
                owners.update({(name, number): member.member_id for number in numbers})
        state = self._driver.coordinator.state
        every = [
            (name, number)
            for name in self._topics
            for number in range(len(state.topics[state.topic_ids[name]].placements))
        ]
        ids = sorted(member.member_id for member in answer.members)
        given: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in ids}
        for index, named in enumerate(every):
            member_id = ids[index % len(ids)]
            if owners.get(named, member_id) == member_id:
                given[member_id].setdefault(named[0], []).append(named[1])
        return {member_id: assignment_bytes(partitions, 1) for member_id, partitions in given.items()}
