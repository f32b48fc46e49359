"""DescribeSharePartitions: who holds which records of a share group now, for administrators.

It reads what is in memory. A share-partition that is not loaded has no record that anybody holds, and its state is at
its share coordinator. Nothing is loaded for an observer, since a share-partition that is in use is not unloaded.
"""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.machine.interval_map import Run
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_leader.share.served_partition import ServedPartition
from kshare_rpc.generated.kshare.v1 import leader_pb2

RUNS_LIMIT = 2_000
"""Runs of one answer: a share-partition has up to `group.share.partition.max.record.locks` of them, a request may name
many, and the event loop must not wait."""
NO_MORE = -1

Result = leader_pb2.DescribeSharePartitionsResponse.Result


def describe_share_partitions(
    directory: SharePartitionDirectory, request: leader_pb2.DescribeSharePartitionsRequest
) -> leader_pb2.DescribeSharePartitionsResponse:
    """The share-partitions in the order of the request; a partition that this node does not lead has an error code."""
    left = min(request.max_runs, RUNS_LIMIT) if request.max_runs > 0 else RUNS_LIMIT
    if request.without_runs:
        left = 0
    lock_duration_ms = directory.settings(request.group_id).limits.lock_duration_ms
    answer = leader_pb2.DescribeSharePartitionsResponse(lock_duration_ms=lock_duration_ms)
    for asked in request.partitions:
        result = answer.results.add(topic_id=asked.topic_id, partition=asked.partition, next_offset=NO_MORE)
        key = SharePartitionKey(request.group_id, asked.topic_id, asked.partition)
        try:
            result.leader_epoch = directory.check_leadership(key.topic_partition)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        served = directory.find(key)
        if served is not None and served.machine is not None:
            left -= _describe(result, served, served.machine, asked.first_offset, left)
            result.oldest_acquired_ms = served.oldest_acquired_ms
    return answer


def _describe(
    result: Result, served: ServedPartition, machine: SharePartition, first_offset: int, most_runs: int
) -> int:
    """Fills in a loaded share-partition; the number of its runs that were added."""
    result.is_loaded = True
    result.leader_epoch, result.state_epoch = served.leader_epoch, served.state_epoch
    result.start_offset, result.end_offset = machine.start_offset, machine.end_offset
    result.readable_end_offset = served.readable_end
    result.acquired_count, result.available_count = machine.acquired_count, machine.available_count
    result.archiving_count, result.delivery_complete_count = machine.archiving_count, machine.delivery_complete_count
    runs = machine.runs_from(first_offset, most_runs)
    for run in runs:
        _add(result, served, run)
    described_to = runs[-1].last_offset + 1 if runs else max(first_offset, machine.start_offset)
    if described_to < machine.end_offset:
        result.next_offset = described_to
    return len(runs)


def _add(result: Result, served: ServedPartition, run: Run) -> None:
    result.runs.add(
        first_offset=run.first_offset,
        last_offset=run.last_offset,
        delivery_state=run.state,
        delivery_count=run.delivery_count,
        member_id=run.owner.member_id if run.owner is not None else "",
        lock_remaining_ms=served.lock_remaining_ms(run),
        next_delivery_state=run.target,
    )
