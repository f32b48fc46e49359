"""Dead letters of the embedded engine: AppendDeadLetters to the leader of the destination, which may be this one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.dead_letters.destination import (
    CONFIGS_OF_CREATED,
    GROUP_ENABLE,
    Destination,
    Refused,
    ToBeCreated,
    Unreachable,
    find_destination,
)
from kshare_leader.dead_letters.letters import LetterBatch, OffsetRun, SourceRecords
from kshare_leader.dead_letters.limits import APPEND_TIMEOUT_MS
from kshare_leader.dead_letters.port import ArchivingPartition
from kshare_leader.dead_letters.target import CannotStore
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.topic_creation import CreatableTopic, TopicNotCreated, create_topic
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import APPEND_DEAD_LETTERS
from kshare_rpc.network import CallFailed, Channel


class LeaderTarget:
    """Implements `target.DeadLetterTarget`.

    `channel` returns the channel to a leader's address, `coordinator` the one to the coordinator. `wait_for_version`
    waits until the catalog's view has a version, with a timeout in milliseconds.
    """

    def __init__(
        self,
        *,
        view: Callable[[], CatalogView],
        channel: Callable[[str], Channel],
        coordinator: Callable[[], Channel],
        wait_for_version: Callable[[int, int], Awaitable[bool]],
        configs: Configs,
        report: Callable[[str], None],
    ) -> None:
        self._view = view
        self._channel = channel
        self._coordinator = coordinator
        self._wait_for_version = wait_for_version
        self._configs = configs
        self._report = report

    async def find(self, key: SharePartitionKey, topic_name: str) -> Destination | Refused | ToBeCreated | Unreachable:
        return find_destination(
            self._view(),
            self._configs,
            group_id=key.group_id,
            topic_name=topic_name,
            source_partition=key.partition,
        )

    async def create(self, topic_name: str) -> None:
        topic = CreatableTopic(
            name=topic_name,
            num_partitions=-1,
            replication_factor=-1,
            configs=[
                coordinator_pb2.ConfigEntry(name=name, value=value)
                for name, value in {GROUP_ENABLE: "true", **CONFIGS_OF_CREATED}.items()
            ],
        )
        try:
            await create_topic(topic, "dead-letter topic", self._coordinator(), self._wait_for_version)
        except TopicNotCreated as failure:
            raise CannotStore(str(failure)) from failure

    async def source_records(
        self, served: ArchivingPartition, runs: Sequence[ArchivingRun], limit_bytes: int
    ) -> tuple[Sequence[ArchivingRun], SourceRecords]:
        return runs, SourceRecords(served.log, self._report)

    async def append(
        self, served: ArchivingPartition, destination: Destination, letters: LetterBatch
    ) -> list[OffsetRun]:
        request = leader_pb2.AppendDeadLettersRequest(
            group_id=served.key.group_id,
            state_epoch=served.state_epoch,
            source_topic_id=served.key.topic_id,
            source_partition=served.key.partition,
            source_start_offset=served.start_offset,
            source_truncation_leader_epoch=served.truncation.leader_epoch,
            source_truncation_offset=served.truncation.offset,
            topic_id=destination.partition.topic_id,
            partition=destination.partition.partition,
        )
        for first, last in letters.offsets:
            request.offsets.add(first_offset=first, last_offset=last)
        channel = self._channel(destination.address)
        try:
            answer, _ = await channel.call(APPEND_DEAD_LETTERS, request, (letters.batch,), timeout_ms=APPEND_TIMEOUT_MS)
        except CallFailed as failure:
            raise CannotStore(f"leader {destination.address}: {failure}") from failure
        if answer.error_code == ErrorCode.FENCED_STATE_EPOCH:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, answer.error_message)
        if answer.error_code or not answer.appended:
            text = answer.error_message or "nothing was appended"
            raise CannotStore(f"leader {destination.address} answered {answer.error_code}: {text}")
        return [OffsetRun(run.first_offset, run.last_offset) for run in answer.appended]

    def dropped(self, key: SharePartitionKey) -> None:
        """The destination's leader has what was appended."""

    async def close(self) -> None:
        """Nothing is kept here."""
