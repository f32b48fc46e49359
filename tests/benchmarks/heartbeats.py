"""What heartbeats of share groups cost the coordinator: `make bench-heartbeats`.

10 to 1,000 share groups with 10 members each join a real coordinator process, with a real share coordinator beside it,
and then heartbeat every 5 s, evenly spread, over the stream that a gateway would use. Told is the share of a core that
the coordinator's process takes while they do, how long a heartbeat takes, and how long it took until the last member
had its partitions. The target is half a core for 1,000 groups.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import CREATE_TOPICS, DESCRIBE_NODES, SHARE_GROUP_HEARTBEAT
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Channel
from support.clusters.role_processes import running

GROUPS = (10, 30, 100, 300, 1_000)
MEMBERS = 10
PARTITIONS = 4
INTERVAL_S = 5.0
JOINS_AT_ONCE = 200
CALL_TIMEOUT_MS = 30_000
TARGET = 0.5
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
TOPIC = "heartbeats"


@dataclass(slots=True)
class Member:
    group_id: str
    member_id: str
    epoch: int = 0
    has_partitions: bool = False


@dataclass(slots=True)
class Measured:
    """`cpu` is the share of one core; times are in seconds."""

    groups: int
    cpu: float
    joined_s: float
    latencies_s: list[float] = field(default_factory=list)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


async def heartbeat(channel: Channel, member: Member) -> None:
    joins = member.epoch == 0
    request = pb.ShareGroupHeartbeatRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        member_epoch=member.epoch,
        has_subscribed_topic_names=joins,
        subscribed_topic_names=[TOPIC] if joins else [],
        client_id="benchmark",
        client_host="/127.0.0.1",
    )
    answer, _ = await channel.call(SHARE_GROUP_HEARTBEAT, request, timeout_ms=CALL_TIMEOUT_MS)
    assert answer.error_code == 0, answer.error_message
    member.epoch = answer.member_epoch
    if answer.has_assignment:
        member.has_partitions = any(topic.partitions for topic in answer.assignment)


async def join(channel: Channel, members: Sequence[Member]) -> None:
    """Returns when every member has partitions."""
    waiting = list(members)
    while waiting:
        for first in range(0, len(waiting), JOINS_AT_ONCE):
            await asyncio.gather(*(heartbeat(channel, member) for member in waiting[first : first + JOINS_AT_ONCE]))
        waiting = [member for member in waiting if not member.has_partitions]
        await asyncio.sleep(0.2 if waiting else 0)


async def keep_up(channel: Channel, members: Sequence[Member], rounds: int, latencies_s: list[float]) -> None:
    """Every member heartbeats once in INTERVAL_S, one after the other, `rounds` times."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    pause_s = INTERVAL_S / len(members)
    under_way: dict[asyncio.Task[None], None] = {}

    async def timed(member: Member) -> None:
        sent_at = loop.time()
        await heartbeat(channel, member)
        latencies_s.append(loop.time() - sent_at)

    for number in range(rounds * len(members)):
        await asyncio.sleep(max(0.0, began + number * pause_s - loop.time()))
        task = loop.create_task(timed(members[number % len(members)]))
        under_way[task] = None
        task.add_done_callback(lambda done: under_way.pop(done, None))
    await asyncio.gather(*list(under_way))


async def wait_for_share_coordinator(channel: Channel) -> None:
    while True:
        answer, _ = await channel.call(DESCRIBE_NODES, pb.DescribeNodesRequest(), timeout_ms=CALL_TIMEOUT_MS)
        if answer.nodes:
            return
        await asyncio.sleep(0.05)


async def measure(address: str, pid: int, groups: int, rounds: int) -> Measured:
    channel = GrpcNetwork().connect(address)
    try:
        await wait_for_share_coordinator(channel)
        topic = pb.CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=-1)
        await channel.call(CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]), timeout_ms=CALL_TIMEOUT_MS)
        members = [
            Member(f"group-{group:04}", f"{group:018}-{number:03}")
            for number in range(MEMBERS)
            for group in range(groups)
        ]
        began = time.monotonic()
        await join(channel, members)
        joined_s = time.monotonic() - began
        await keep_up(channel, members, 1, [])  # the last assignments are told
        measured = Measured(groups, 0.0, joined_s)
        began, used = time.monotonic(), cpu_seconds(pid)
        await keep_up(channel, members, rounds, measured.latencies_s)
        measured.cpu = (cpu_seconds(pid) - used) / (time.monotonic() - began)
        return measured
    finally:
        await channel.close()


def run(groups: int, rounds: int) -> Measured:
    """In processes and on a disk of their own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running("coordinator", Path(folder) / "c") as coordinator,
        running("share_coordinator", Path(folder) / "s", coordinator_address=coordinator.address),
    ):
        assert coordinator.process is not None
        return asyncio.run(measure(coordinator.address, coordinator.process.pid, groups, rounds))


def table_of(results: Sequence[Measured]) -> Table:
    table = Table(
        "groups", "members", "heartbeats/s", "CPU of the coordinator", "per heartbeat", "p50", "p99", "all joined"
    )
    for result in results:
        rate = result.groups * MEMBERS / INTERVAL_S
        table.add_row(
            f"{result.groups:,}",
            f"{result.groups * MEMBERS:,}",
            f"{rate:,.0f}",
            f"{result.cpu:.1%} of a core",
            f"{result.cpu / rate * 1e6:.0f} us",
            f"{median(result.latencies_s) * 1e3:.2f} ms",
            f"{quantiles(result.latencies_s, n=100)[98] * 1e3:.2f} ms",
            f"{result.joined_s:.1f} s",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-heartbeats", description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=3, help="heartbeats of each member that are measured")
    options = parser.parse_args()
    results = [run(groups, options.rounds) for groups in options.groups]
    console = Console(width=140)
    console.print(table_of(results))
    for result in results:
        if result.groups == 1_000:
            verdict = "reached" if result.cpu < TARGET else "missed"
            console.print(f"target for 1,000 groups: under {TARGET:.0%} of a core; {result.cpu:.1%}, {verdict}")


if __name__ == "__main__":
    main()
