"""What a write of share-partition state costs, and how many a share coordinator takes: `make bench-share-coordinator`.

1. Cost per write as the store grows from 1 to 100,000 share-partitions: a real share coordinator, writes of one
   share-partition each, at random among those of its store, each of which was written once before. What a single
   caller waits for and the CPU time of its writes are to be flat within 1.5. With many callers at once, whose writes
   share an fsync, it is the states that are not in the CPU's caches that cost more.
2. The same without network, event loop and disk (a store in memory where that can be): machine, records, index and
   RocksDB alone, one write per commit and 100. It grows because 100,000 states are more memory than a CPU keeps near.
3. Writes per second of 1 and 2 real share coordinators on this machine, with a coordinator and this client beside them.
4. Writes per second of 1, 2 and 3 share coordinators in a model with what 1 and 2 measured: each has a core and a disk
   of its own, takes all that waits in one turn, and answers after one fsync. Clients wait for each answer. What the
   model leaves out: the network, the clients' own cost, and moves.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_fastpath.memory import collect_garbage_rarely
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import DESCRIBE_STATE_PARTITIONS, WRITE_SHARE_GROUP_STATE
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Channel
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.operations import WriteState
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.state_store import StateStore
from kshare_share_coordinator.state_topic import StateTopicIndex
from support.clusters.role_processes import RoleProcess
from support.share_coordinator.many_states import NOW_MS, STATE_PARTITIONS, many_keys, write_states

SIZES = (1, 100, 1_000, 10_000, 100_000)
FLAT = 1.5
ROUNDS = 21
SERVED_SHARE_PARTITIONS = 2_000
CLIENTS = (1, 16, 128)
FEW_CLIENTS = (1, 64)
TURNS = 8
MODEL_WRITES = 200_000
IDLE_CPU = 0.06
"""Of a CPU; the background pass over all states takes a part of it."""
US = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one write, in microseconds."""

    cpu_us: float
    wall_us: float


class Writer:
    """What a node does with writes, without network and event loop."""

    def __init__(self, store: ChecksummedStore, keys: Sequence[SharePartitionKey]) -> None:
        self._state_store = StateStore(
            store=store,
            state_partition_of=lambda key: state_partition_of(key, STATE_PARTITIONS),
            state_topic=StateTopicIndex(store=store, now_ms=lambda: NOW_MS),
        )
        self._machine = ShareCoordinatorMachine(load=self._state_store.load, snapshot_update_records_per_snapshot=500)
        self._keys = keys
        self._random = random.Random(1)
        self._offset = 1_000

    def write_each(self) -> float:
        """Writes each share-partition once; CPU microseconds for each, the load included."""
        started = time.process_time()
        for low in range(0, len(self._keys), 100):
            self._commit(self._keys[low : low + 100])
        return (time.process_time() - started) / len(self._keys) * US

    def commit(self, count: int) -> None:
        """So many writes of one turn, and their fsync."""
        self._commit(self._random.choices(self._keys, k=count))

    def _commit(self, keys: Sequence[SharePartitionKey]) -> None:
        records: list[Record] = []
        for key in keys:
            self._offset += 10
            batches = [StateBatch(self._offset, self._offset + 9, 2, 1)]
            decision = self._machine.decide(WriteState(key, 1, 0, self._offset, 10, batches), NOW_MS)
            assert decision.response.error_code == ErrorCode.NONE, decision.response
            for record in decision.records:
                self._machine.replay(record)
            records.extend(decision.records)
        self._state_store.append(records)
        self._machine.records_are_durable()


def measure(writer: Writer, per_commit: int, writes: int) -> Cost:
    """Of `writes` writes."""
    started_cpu, started = time.process_time(), time.perf_counter()
    for _ in range(writes // per_commit):
        writer.commit(per_commit)
    cpu_s, wall_s = time.process_time() - started_cpu, time.perf_counter() - started
    return Cost(cpu_s / writes * US, wall_s / writes * US)


def parts_by_size(directory: Path, console: Console) -> dict[int, Cost]:
    """Prints what machine and store cost alone; the costs of the largest store by writes per commit."""
    stores = {size: ChecksummedStore(RocksStore(directory / f"size-{size}", isolate_damage=True)) for size in SIZES}
    writers: dict[int, Writer] = {}
    first: dict[int, float] = {}
    for size, store in stores.items():
        write_states(store, many_keys(size))
        writers[size] = Writer(store, list(many_keys(size)))
        first[size] = writers[size].write_each()
    rounds: dict[tuple[int, int], list[Cost]] = {(size, per_commit): [] for size in SIZES for per_commit in (1, 100)}
    for _ in range(ROUNDS):
        for size, per_commit in rounds:
            rounds[size, per_commit].append(measure(writers[size], per_commit, 100 if per_commit == 1 else 2_000))
    for store in stores.values():
        store.close()
    costs = {
        place: Cost(median(cost.cpu_us for cost in found), median(cost.wall_us for cost in found))
        for place, found in rounds.items()
    }
    table = Table("share-partitions", "CPU µs, 1 per commit", "100 per commit", "the first write after a start")
    for size in SIZES:
        cells = (costs[size, 1].cpu_us, costs[size, 100].cpu_us, first[size])
        table.add_row(f"{size:,}", *[f"{cell:.0f}" for cell in cells])
    console.print(table)
    return {per_commit: costs[SIZES[-1], per_commit] for per_commit in (1, 100)}


def fsync_us(directory: Path) -> float:
    """What one commit waits for the disk, in microseconds."""
    store = ChecksummedStore(RocksStore(directory / "fsync", isolate_damage=True))
    write_states(store, many_keys(100))
    writer = Writer(store, list(many_keys(100)))
    writer.write_each()
    costs = [measure(writer, 1, 1) for _ in range(500)]
    store.close()
    return median(cost.wall_us - cost.cpu_us for cost in costs)


async def cost_by_size(directory: Path, console: Console, seconds: float) -> None:
    """Prints the first table; the share coordinators take turns, so that a busy machine is busy for all of them."""
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    async with AsyncExitStack() as stack:
        served = {
            size: await stack.enter_async_context(serving(directory / f"served-{size}", 1, size)) for size in SIZES
        }
        for _ in range(TURNS):
            for clients in FEW_CLIENTS:
                for size, one in served.items():
                    found.setdefault((size, clients), []).append(await one.load(clients, seconds / TURNS))
    table = Table("share-partitions", "1 client: CPU µs", "writes/s", "64 clients: CPU µs", "writes/s")
    medians = {
        place: (median(rate for rate, _ in turns), median(cpu for _, cpu in turns)) for place, turns in found.items()
    }
    for size in SIZES:
        cells = [f"{value:,.0f}" for clients in FEW_CLIENTS for value in reversed(medians[size, clients])]
        table.add_row(f"{size:,}", *cells)
    console.print(table)
    for clients in FEW_CLIENTS:
        show_ratio(console, f"time per write, {clients} clients", [medians[size, clients][0] for size in SIZES])
        show_ratio(console, f"CPU per write, {clients} clients", [medians[size, clients][1] for size in SIZES])


def show_ratio(console: Console, what: str, values: Sequence[float]) -> None:
    ratio = max(values) / min(values)
    verdict = "flat" if ratio <= FLAT else f"not within {FLAT}"
    console.print(f"{what}: largest / smallest {ratio:.2f}, {verdict}")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of real processes."""

    nodes: int
    clients: int
    writes_per_s: float
    cpu_us: float
    """Of all share coordinators together, for each write."""


def cpu_seconds(process: RoleProcess) -> float:
    assert process.process is not None
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def owners_when_balanced(coordinator: Channel, nodes: int) -> dict[int, str]:
    """The address of each state partition's owner, once every node has its part and nothing moves."""
    deadline = time.monotonic() + 60
    while True:
        answer, _ = await coordinator.call(
            DESCRIBE_STATE_PARTITIONS, coordinator_pb2.DescribeStatePartitionsRequest(), timeout_ms=5_000
        )
        addresses = {node.node_id: node.rpc_address for node in answer.share_coordinators if node.is_live}
        owners = [owner.node_id for owner in answer.state_partitions]
        is_settled = owners and not any(owner.is_moving for owner in answer.state_partitions)
        if is_settled and set(owners) == set(addresses) and len(addresses) == nodes:
            return {owner.state_partition: addresses[owner.node_id] for owner in answer.state_partitions}
        assert time.monotonic() < deadline, "the state partitions are not spread over all share coordinators"
        await asyncio.sleep(0.1)


async def load(
    processes: Sequence[RoleProcess],
    owners: dict[int, str],
    keys: Sequence[SharePartitionKey],
    clients: int,
    seconds: float,
    idle_cpu: float,
) -> tuple[float, float]:
    """Writes per second of so many clients, each with one request under way; CPU seconds per write of the nodes."""
    channels = {address: GrpcNetwork().connect(address) for address in dict.fromkeys(owners.values())}
    done = 0
    is_over = False

    async def client(number: int) -> None:
        nonlocal done
        choices = random.Random(number)
        offset = 1_000 * number
        while not is_over:
            key = choices.choice(keys)
            offset += 10
            request = messages.WriteShareGroupStateRequest(group_id=key.group_id)
            partition = request.partitions.add(
                topic_id=key.topic_id, partition=key.partition, state_epoch=1, leader_epoch=0, start_offset=offset
            )
            partition.state_batches.add(first_offset=offset, last_offset=offset + 9, delivery_state=2, delivery_count=1)
            channel = channels[owners[state_partition_of(key, STATE_PARTITIONS)]]
            answer, _ = await channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=10_000)
            assert answer.results[0].error_code == ErrorCode.NONE, answer.results[0]
            done += 1

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    await asyncio.sleep(min(0.5, seconds))
    # The pass over all states runs whether somebody writes or not, so it is not a write's cost.
    before, cpu_before, started = done, sum(map(cpu_seconds, processes)), time.perf_counter()
    await asyncio.sleep(seconds)
    writes = done - before
    elapsed = time.perf_counter() - started
    cpu = max(0.0, sum(map(cpu_seconds, processes)) - cpu_before - idle_cpu * elapsed)
    is_over = True
    await asyncio.gather(*tasks)
    for channel in channels.values():
        await channel.close()
    return writes / elapsed, cpu / max(1, writes)


async def write_each(address: str, keys: Sequence[SharePartitionKey]) -> None:
    """Writes all share-partitions once, those of one group together."""
    channel = GrpcNetwork().connect(address)
    for low in range(0, len(keys), 100):
        request = messages.WriteShareGroupStateRequest(group_id=keys[low].group_id)
        for key in keys[low : low + 100]:
            request.partitions.add(
                topic_id=key.topic_id, partition=key.partition, state_epoch=1, leader_epoch=0, start_offset=-1
            )
        answer, _ = await channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=30_000)
        assert not any(result.error_code for result in answer.results), answer.results[0]
    await channel.close()


async def settled(processes: Sequence[RoleProcess]) -> float:
    """Waits until RocksDB has merged what was written in bulk; the CPU seconds used in a second of doing nothing."""
    for _ in range(30):
        before = sum(map(cpu_seconds, processes))
        await asyncio.sleep(1)
        used = sum(map(cpu_seconds, processes)) - before
        if used <= IDLE_CPU:
            break
    return used


@dataclass(slots=True)
class Served:
    """A coordinator and share coordinators that are ready."""

    processes: Sequence[RoleProcess]
    owners: dict[int, str]
    keys: Sequence[SharePartitionKey]
    idle_cpu: float

    async def load(self, clients: int, seconds: float) -> tuple[float, float]:
        """Writes per second, and CPU microseconds of the share coordinators for each."""
        rate, cpu = await load(self.processes, self.owners, self.keys, clients, seconds, self.idle_cpu)
        return rate, cpu * US


@asynccontextmanager
async def serving(directory: Path, nodes: int, share_partitions: int) -> AsyncIterator[Served]:
    """So many share coordinators that have all states; the first one's store is built before."""
    coordinator = RoleProcess("coordinator", directory / "coordinator")
    processes = [
        RoleProcess(
            "share_coordinator",
            directory / f"node-{node_id}",
            coordinator_address=coordinator.address,
            node_id=node_id,
        )
        for node_id in range(1, nodes + 1)
    ]
    store = ChecksummedStore(RocksStore(directory / "node-1" / "share-coordinator", isolate_damage=True))
    keys = list(many_keys(share_partitions))
    write_states(store, iter(keys))
    store.close()
    started = []
    try:
        for process in (coordinator, *processes):
            process.start()
            started.append(process)
            process.wait_ready()
        channel = GrpcNetwork().connect(coordinator.address)
        owners = await owners_when_balanced(channel, nodes)
        await channel.close()
        if nodes == 1:
            await write_each(processes[0].address, keys)
        yield Served(processes, owners, keys, await settled(processes))
    finally:
        for process in started:
            process.kill()


async def throughput(directory: Path, nodes: int, seconds: float) -> list[Throughput]:
    """Each number of clients."""
    async with serving(directory, nodes, SERVED_SHARE_PARTITIONS) as served:
        return [Throughput(nodes, clients, *await served.load(clients, seconds)) for clients in CLIENTS]


def show_throughput(found: Sequence[Throughput], console: Console) -> None:
    table = Table("share coordinators", "clients", "writes/s", "CPU µs per write")
    for row in found:
        table.add_row(str(row.nodes), str(row.clients), f"{row.writes_per_s:,.0f}", f"{row.cpu_us:.0f}")
    console.print(table)


def model(nodes: int, clients: int, *, write_s: float, commit_s: float, seed: int = 1) -> float:
    """Writes per second: each node's turn takes all that waits, `write_s` for each and `commit_s` for the turn."""
    choices = random.Random(seed)
    waiting = [0] * nodes
    busy = [0] * nodes
    """How many writes the turn that runs has."""
    events: list[tuple[float, int]] = []
    done, now = 0, 0.0

    def begin(node: int) -> None:
        if waiting[node] and not busy[node]:
            busy[node], waiting[node] = waiting[node], 0
            heapq.heappush(events, (now + commit_s + busy[node] * write_s, node))

    def ask() -> None:
        node = choices.randrange(nodes)
        waiting[node] += 1
        begin(node)

    for _ in range(clients):
        ask()
    while done < MODEL_WRITES:
        now, node = heapq.heappop(events)
        answered, busy[node] = busy[node], 0
        done += answered
        for _ in range(answered):
            ask()
        begin(node)
    return done / now


def show_model(console: Console, *, write_us: float, commit_us: float) -> None:
    table = Table("clients", "1 share coordinator", "2", "3")
    for clients in CLIENTS:
        rates = [model(nodes, clients, write_s=write_us / US, commit_s=commit_us / US) for nodes in (1, 2, 3)]
        cells = [f"{rate:,.0f} x{rate / rates[0]:.2f}" for rate in rates]
        table.add_row(str(clients), *cells)
    console.print(table)
    console.print(
        f"The model's costs: {write_us:.0f} µs of CPU for each write, {commit_us:.0f} µs for each group commit"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each number of clients")
    parser.add_argument("--directory", type=Path, help="where the stores lie, so which disk is measured")
    options = parser.parse_args()
    console = Console(width=120)
    memory = Path("/dev/shm")
    collect_garbage_rarely()
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        console.print("Machine and store alone")
        parts = parts_by_size(Path(name), console)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        console.print("A share coordinator by the size of its store")
        asyncio.run(cost_by_size(directory, console, options.seconds))
        console.print("Real processes on this machine")
        found = [
            row
            for nodes in (1, 2)
            for row in asyncio.run(throughput(directory / f"processes-{nodes}", nodes, options.seconds))
        ]
        show_throughput(found, console)
        console.print("The model, a core and a disk for each share coordinator")
        write_us = [row.cpu_us for row in found if row.nodes == 1][-1]
        commit_us = fsync_us(directory) + parts[1].cpu_us - parts[100].cpu_us
        show_model(console, write_us=write_us, commit_us=commit_us)


if __name__ == "__main__":
    main()
