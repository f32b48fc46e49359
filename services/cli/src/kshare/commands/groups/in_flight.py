"""`kshare groups in-flight`: who holds which records of a share group, for how long, and what waits for redelivery.

The leaders have it in memory (DescribeSharePartitions). A share-partition that no leader has in memory has no record
that anybody holds; it is listed without runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from kshare.addresses import Address, parse_address
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.groups.group_requests import describe_share_group, read_share_offsets
from kshare.commands.partitions import describe_partitions
from kshare.commands.state.coordinator_call import call_one
from kshare.commands.state.role_network import RoleAddress, why_no_response
from kshare.failure import CommandFailed
from kshare.output import Listing, Row, show
from kshare_core.errors import ErrorCode
from kshare_core.states import RecordState
from kshare_rpc.generated.kshare.v1 import leader_pb2 as pb
from kshare_rpc.generated.methods import DESCRIBE_SHARE_PARTITIONS
from kshare_rpc.network import CallFailed

SHARE_PARTITIONS_PER_CALL = 500
RUNS_LIMIT = 100_000
"""Runs that one command reads; the lists of more would only fill a terminal."""
NO_MORE = -1


@dataclass(slots=True)
class InFlight:
    """One share-partition at its leader."""

    topic: str
    partition: int
    leader: str
    """Its RPC address."""
    is_loaded: bool = False
    start_offset: int = -1
    end_offset: int = -1
    readable_end_offset: int = -1
    runs: list[pb.DescribeSharePartitionsResponse.Run] = field(default_factory=list)
    problem: str | None = None


def show_in_flight(
    bootstrap: str,
    coordinator: Address,
    group_id: str,
    topic: str | None,
    console: Console,
    properties: Properties = NO_PROPERTIES,
    *,
    held_only: bool = False,
    as_json: bool = False,
) -> None:
    """Prints the share-partitions, and their runs with the clients that hold them; CommandFailed."""
    found = read_in_flight(bootstrap, coordinator, group_id, topic, properties)
    clients = {
        member.member_id: member.client_id for member in describe_share_group(bootstrap, group_id, properties).members
    }
    partitions: list[Row] = [_partition_row(each) for each in found]
    runs: list[Row] = [
        _run_row(each, run, clients)
        for each in found
        for run in each.runs
        if not held_only or run.delivery_state == RecordState.ACQUIRED
    ]
    headings = {"topic": "topic", "partition": "partition", "start_offset": "start", "end_offset": "end"}
    headings |= {"not_acquired": "never acquired", "held": "held", "note": "note"}
    run_headings = {"topic": "topic", "partition": "partition", "first_offset": "first", "last_offset": "last"}
    run_headings |= {"state": "state", "delivery_count": "deliveries", "client": "client", "lock": "lock ends in"}
    show(
        console,
        Listing("share_partitions", headings, partitions),
        Listing("runs", run_headings, runs),
        as_json=as_json,
    )


def read_in_flight(
    bootstrap: str, coordinator: Address, group_id: str, topic: str | None, properties: Properties = NO_PROPERTIES
) -> list[InFlight]:
    """The group's share-partitions by topic and partition, limited to `topic` if it is given; CommandFailed."""
    offsets = [one for one in read_share_offsets(bootstrap, group_id, properties) if topic in (None, one.topic)]
    if not offsets:
        where = "" if topic is None else f" in topic {topic}"
        raise CommandFailed(f"group {group_id} has no share-partitions{where}; kshare groups list shows all groups")
    by_leader: dict[str, dict[tuple[bytes, int], InFlight]] = {}
    found: list[InFlight] = []
    leaders = leaders_of(coordinator, sorted({one.topic for one in offsets}))
    for one in sorted(offsets, key=lambda each: (each.topic, each.partition)):
        address = leaders.get((one.topic, one.partition))
        found.append(InFlight(one.topic, one.partition, address or ""))
        if address is None:
            found[-1].problem = "it has no live leader"
        else:
            by_leader.setdefault(address, {})[one.topic_id, one.partition] = found[-1]
    for address, asked in by_leader.items():
        _read_from(called_like(coordinator, address), group_id, asked)
    return found


def leaders_of(coordinator: Address, topics: Sequence[str]) -> dict[tuple[str, int], str]:
    """The RPC addresses of live leaders, by topic and partition."""
    answer = describe_partitions(coordinator, topics)
    addresses = {leader.node_id: leader.rpc_address for leader in answer.leaders if leader.is_live}
    return {
        (topic.name, partition.partition): addresses[partition.leader_node_id]
        for topic in answer.topics
        for partition in topic.partitions
        if partition.leader_node_id in addresses
    }


def called_like(coordinator: Address, address: str) -> Address:
    """A leader's address, to be called with the certificate for the coordinator."""
    found = RoleAddress(*parse_address(address, what="the leader's address"))
    found.config_file = coordinator.config_file if isinstance(coordinator, RoleAddress) else None
    return found


def _read_from(leader: Address, group_id: str, asked: Mapping[tuple[bytes, int], InFlight]) -> None:
    """Fills in what one leader has, portion by portion."""
    left = RUNS_LIMIT
    next_offsets: dict[tuple[bytes, int], int] = dict.fromkeys(asked, 0)
    while next_offsets and left > 0:
        request = pb.DescribeSharePartitionsRequest(group_id=group_id, max_runs=left)
        for (topic_id, partition), offset in list(next_offsets.items())[:SHARE_PARTITIONS_PER_CALL]:
            request.partitions.add(topic_id=topic_id, partition=partition, first_offset=offset)
        answer = call_one(leader, DESCRIBE_SHARE_PARTITIONS, request)
        if isinstance(answer, CallFailed):
            problem = f"the leader at {leader} did not answer: {why_no_response(leader, answer)}"
            for key in next_offsets:
                asked[key].problem = problem
            return
        for result in answer.results:
            key = (result.topic_id, result.partition)
            left -= _add(asked[key], result)
            if result.next_offset == NO_MORE:
                del next_offsets[key]
            else:
                next_offsets[key] = result.next_offset
    for key in next_offsets:
        asked[key].problem = f"only the first {RUNS_LIMIT:,} runs are shown"


def _add(share_partition: InFlight, result: pb.DescribeSharePartitionsResponse.Result) -> int:
    if result.error_code:
        share_partition.problem = f"{ErrorCode(result.error_code).name}: {result.error_message}"
        return 0
    share_partition.is_loaded = result.is_loaded
    if result.is_loaded:
        share_partition.start_offset, share_partition.end_offset = result.start_offset, result.end_offset
        share_partition.readable_end_offset = result.readable_end_offset
    share_partition.runs.extend(result.runs)
    return len(result.runs)


def _partition_row(share_partition: InFlight) -> Row:
    held = sum(_length(run) for run in share_partition.runs if run.delivery_state == RecordState.ACQUIRED)
    loaded = share_partition.is_loaded
    note = share_partition.problem or ("" if loaded else "not loaded; no records are held")
    return {
        "topic": share_partition.topic,
        "partition": share_partition.partition,
        "leader": share_partition.leader,
        "start_offset": share_partition.start_offset if loaded else None,
        "end_offset": share_partition.end_offset if loaded else None,
        "not_acquired": max(0, share_partition.readable_end_offset - share_partition.end_offset) if loaded else None,
        "held": held if loaded else None,
        "note": note,
    }


def _length(run: pb.DescribeSharePartitionsResponse.Run) -> int:
    return run.last_offset - run.first_offset + 1


def _run_row(share_partition: InFlight, run: pb.DescribeSharePartitionsResponse.Run, clients: Mapping[str, str]) -> Row:
    state, target = RecordState(run.delivery_state), RecordState(run.next_delivery_state)
    name = state.name.capitalize()
    is_held = state == RecordState.ACQUIRED
    return {
        "topic": share_partition.topic,
        "partition": share_partition.partition,
        "first_offset": run.first_offset,
        "last_offset": run.last_offset,
        "state": name if target == state else f"{name}, being stored as {target.name.capitalize()}",
        "delivery_count": run.delivery_count,
        "client": clients.get(run.member_id, run.member_id) if is_held else None,
        "member": run.member_id or None,
        "lock": f"{run.lock_remaining_ms / 1000:.1f} s" if is_held else None,
        "lock_remaining_ms": run.lock_remaining_ms if is_held else None,
    }
