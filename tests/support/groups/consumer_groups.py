"""Consumer groups of KIP-848 in tests: heartbeats in few words, and a member that follows the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kshare_coordinator.machine.commands import ConsumerGroupHeartbeat
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

Request = pb.ConsumerGroupHeartbeatRequest
Response = pb.ConsumerGroupHeartbeatResponse
Owned = Mapping[bytes, Sequence[int]]


def request_of(
    member_id: str,
    member_epoch: int,
    names: Sequence[str] | None = None,
    *,
    group_id: str = "group",
    regex: str | None = None,
    owned: Owned | None = None,
    instance_id: str | None = None,
    assignor: str | None = None,
    rebalance_timeout_ms: int = -1,
    rack_id: str | None = None,
    api_version: int = 1,
    principal: str = "",
    client_host: str = "/127.0.0.1",
    is_open_without_acls: bool = False,
) -> Request:
    """None is Kafka's null; a field that is not given is null."""
    return Request(
        api_version=api_version,
        group_id=group_id,
        member_id=member_id,
        member_epoch=member_epoch,
        has_instance_id=instance_id is not None,
        instance_id=instance_id or "",
        has_rack_id=rack_id is not None,
        rack_id=rack_id or "",
        rebalance_timeout_ms=rebalance_timeout_ms,
        has_subscribed_topic_names=names is not None,
        subscribed_topic_names=names or [],
        has_subscribed_topic_regex=regex is not None,
        subscribed_topic_regex=regex or "",
        has_server_assignor=assignor is not None,
        server_assignor=assignor or "",
        has_owned_partitions=owned is not None,
        owned_partitions=[
            pb.TopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in (owned or {}).items()
        ],
        client_id="client",
        client_host=client_host,
        principal=principal,
        is_open_without_acls=is_open_without_acls,
    )


def send(driver: CoordinatorDriver, request: Request) -> Response:
    return driver.run(ConsumerGroupHeartbeat(request=request, new_member_id="chosen-by-the-coordinator"))


def join_request(member_id: str, names: Sequence[str] | None = None, **fields: object) -> Request:
    """What a member sends to join: it owns nothing."""
    settings: dict[str, object] = {"owned": {}, "rebalance_timeout_ms": 60_000, **fields}
    return request_of(member_id, 0, names, **settings)  # type: ignore[arg-type]


def assigned(response: Response) -> dict[bytes, list[int]] | None:
    """By topic id; None where the answer has no assignment."""
    if not response.has_assignment:
        return None
    return {topic.topic_id: list(topic.partitions) for topic in response.assignment}


class ProtocolMember:
    """A client that keeps to the protocol: it gives back what is not in its assignment any more, and then says so.

    `owned` is what it consumes right now. Giving back takes a while: until `give_back` it consumes all that it had, and
    says so. An answer that is lost changes nothing here.
    """

    def __init__(self, member_id: str, **subscription: object) -> None:
        self.member_id = member_id
        self.subscription = subscription
        self.epoch = 0
        self.owned: set[tuple[bytes, int]] = set()
        self._wanted: set[tuple[bytes, int]] = set()
        self._reported: set[tuple[bytes, int]] | None = None
        self._must_report_all = True

    def next_request(self) -> Request:
        """All fields when it joins or an answer was lost; else what it owns, where that changed."""
        fields: dict[str, object] = {}
        if self._must_report_all or self.epoch == 0:
            fields = {"rebalance_timeout_ms": 60_000, **self.subscription}
        if self._must_report_all or self.owned != self._reported:
            fields["owned"] = self._owned_by_topic()
        self._reported = set(self.owned)
        return request_of(self.member_id, self.epoch, **fields)  # type: ignore[arg-type]

    def _owned_by_topic(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            found.setdefault(topic_id, []).append(partition)
        return found

    def subscribe(self, **subscription: object) -> None:
        self.subscription = subscription
        self._must_report_all = True

    def take(self, response: Response) -> None:
        """New partitions are consumed at once, but not before the others are given back."""
        self.epoch = response.member_epoch
        self._must_report_all = False
        wanted = assigned(response)
        if wanted is not None:
            self._wanted = {(topic_id, partition) for topic_id, numbers in wanted.items() for partition in numbers}
        if self.owned <= self._wanted:
            self.give_back()

    def give_back(self) -> None:
        """It has committed and stopped what is not assigned any more."""
        self.owned = set(self._wanted)

    def lose_answer(self) -> None:
        self._must_report_all = True

    def be_fenced(self) -> None:
        """FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER_ID: it gives everything up and joins again."""
        self.epoch = 0
        self.stop()
        self._must_report_all = True

    def stop(self) -> None:
        """It consumes nothing any more, but does not know that it must join again."""
        self.owned = set()
        self._wanted = set()
