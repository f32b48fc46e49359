"""The schedule of faults, which is drawn from the seed, and the task that carries it out.

A fault begins at `at` and ends `duration` later; faults overlap. Each begin and end is a FaultEvent in the history.

Two faults are not drawn, but chosen by tests whose rules know records by their values (`rules.log_losses`): `disk-lost`
(the host dies, and comes back with an empty disk) and `disk-older` (its disk is copied at the begin, and at the end it
dies and comes back with the copy).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DRAIN_SHARE_COORDINATOR
from kshare_rpc.network import CallFailed
from kshare_runtime.memory_store import DiskCopy
from support.simulation.cluster import RPC_PORT
from support.simulation.connections import ClientListeners
from support.simulation.history import FaultEvent, History
from support.simulation.hosts import SimulatedHost
from support.simulation.loop import Incarnation, VirtualLoop
from support.simulation.network import SimulatedFabric, SimulatedNetwork

DRAIN_TIMEOUT_MS = 1_000
DRAIN_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """`hosts`: whom it hits. `strength`: what the fault makes of it (a delay in seconds, a probability, a skew)."""

    at: float
    name: str
    hosts: tuple[str, ...] = ()
    duration: float = 0.0
    strength: float = 0.0

    def __str__(self) -> str:
        return f"{self.name} {','.join(self.hosts)} for {self.duration:.2f} s (strength {self.strength:.3f})"


Draw = Callable[[random.Random, Sequence[str], float], Fault]


def _some(draw: random.Random, hosts: Sequence[str], most: int) -> tuple[str, ...]:
    return tuple(sorted(draw.sample(list(hosts), draw.randint(1, min(most, len(hosts))))))


def _crash(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    several = 1 if draw.random() < 0.6 else len(hosts)
    duration = draw.choice((0.01, 0.3, 2.0, 12.0)) * (0.5 + draw.random())
    return Fault(at, draw.choice(("crash", "silent-crash")), _some(draw, hosts, several), duration)


def _power_loss(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "crash", tuple(sorted(hosts)), draw.choice((0.01, 1.0, 5.0)) * (0.5 + draw.random()))


def _stop(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "stop", _some(draw, hosts, 1), 0.2 + 3 * draw.random())


def _pause(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "pause", _some(draw, hosts, 1), draw.choice((0.2, 3.0, 15.0)) * (0.5 + draw.random()))


def _partition(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    pair = tuple(draw.sample(list(hosts), 2))
    return Fault(at, draw.choice(("partition", "one-way")), pair, draw.choice((0.5, 4.0, 15.0)) * (0.5 + draw.random()))


def _isolate(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "isolate", _some(draw, hosts, 1), draw.choice((1.0, 6.0, 15.0)) * (0.5 + draw.random()))


def _cut(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "cut", tuple(draw.sample(list(hosts), 2)))


def _cut_clients(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "cut-clients", strength=0.2 + 0.8 * draw.random())


def _slow(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    strength = draw.choice((0.02, 0.3, 4.0))
    return Fault(at, "slow-network", duration=1 + 6 * draw.random(), strength=strength)


def _slow_host(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "slow-host", _some(draw, hosts, 1), 1 + 8 * draw.random(), draw.choice((0.05, 0.5, 5.0)))


def _slow_link(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    pair = tuple(draw.sample(list(hosts), 2))
    return Fault(at, "slow-link", pair, 1 + 12 * draw.random(), draw.choice((0.05, 0.5, 5.0)))


def _drops(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "drops", duration=1 + 5 * draw.random(), strength=draw.choice((0.01, 0.05, 0.2)))


def _disk(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "disk-failure", _some(draw, hosts, 1), 0.5 + 4 * draw.random(), strength=draw.choice((2, 10_000)))


def _clock(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    skew_s = draw.choice((-3600.0, -20.0, -1.0, 1.0, 20.0, 3600.0))
    return Fault(at, "clock-jump", _some(draw, hosts, 1), strength=skew_s)


def _drain(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    """A share coordinator shall be empty, and after a while it may have state partitions again."""
    share_coordinators = [host for host in hosts if host.startswith("share-coordinator")]
    if len(share_coordinators) < 2:
        return _crash(draw, hosts, at)
    return Fault(at, "drain", _some(draw, share_coordinators, 1), draw.choice((0.05, 0.5, 5.0)) * (0.5 + draw.random()))


KINDS: tuple[tuple[int, Draw], ...] = (
    (6, _crash),
    (3, _power_loss),
    (1, _stop),
    (3, _pause),
    (3, _partition),
    (2, _isolate),
    (2, _cut),
    (2, _cut_clients),
    (2, _slow),
    (2, _slow_host),
    (3, _slow_link),
    (2, _drops),
    (3, _disk),
    (1, _clock),
    (3, _drain),
)
"""How often each kind is drawn, relative to the others."""


OWNERS = ("coordinator", "share-coordinator")


def _stale_owner(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    """An owner of logs in the existing cluster is replaced while its requests to brokers are under way."""
    owners = [host for host in hosts if host.startswith(OWNERS)]
    duration = draw.choice((8.0, 16.0)) * (0.7 + 0.6 * draw.random())
    return Fault(at, "stale-owner", _some(draw, owners, 1), duration, draw.choice((1.0, 4.0, 9.0)))


KINDS_OF_KAFKA = (*((weight, kind) for weight, kind in KINDS if kind is not _disk), (5, _stale_owner))
"""With the kafka engine; there are no disks."""


def draw_faults(
    draw: random.Random,
    hosts: Sequence[str],
    *,
    start: float,
    end: float,
    count: int,
    kinds_of_fault: Sequence[tuple[int, Draw]] = KINDS,
) -> list[Fault]:
    """`count` faults that begin between `start` and `end`, in order of time."""
    weights = [weight for weight, _ in kinds_of_fault]
    kinds = draw.choices([kind for _, kind in kinds_of_fault], weights, k=count)
    faults = [kind(draw, hosts, start + (end - start) * draw.random()) for kind in kinds]
    return sorted(faults, key=lambda fault: (fault.at, fault.name))


class FaultyCluster(Protocol):
    """What faults need of a cluster."""

    @property
    def loop(self) -> VirtualLoop: ...

    @property
    def fabric(self) -> SimulatedFabric: ...

    @property
    def listeners(self) -> ClientListeners: ...

    @property
    def history(self) -> History: ...

    @property
    def hosts(self) -> Mapping[str, SimulatedHost]: ...

    def all_host_names(self) -> list[str]: ...


class FaultInjector:
    """Carries out faults on a cluster. `heal` ends them all."""

    def __init__(self, cluster: FaultyCluster, randomness: random.Random) -> None:
        self._cluster = cluster
        self._random = randomness
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._operator = SimulatedNetwork(cluster.fabric, Incarnation("operator", 1))
        self._drained: dict[str, None] = {}
        self._disk_copies: dict[str, DiskCopy] = {}

    def start(self, faults: Sequence[Fault]) -> None:
        loop = self._cluster.loop
        for fault in faults:
            self._tasks.append(loop.create_task(self._carry_out(fault), name=f"fault:{fault.name}"))

    async def heal(self) -> None:
        """No more faults: the network is whole, every host runs."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        cluster = self._cluster
        cluster.fabric.heal()
        for host in cluster.hosts.values():
            host.disk.fail_next_writes(0)
            host.disk.fail_next_syncs(0)
            host.resume()
            if not host.running:
                host.start()
        for name in list(self._drained):
            while not await self._ask_to_drain(name, undo=True):
                await asyncio.sleep(DRAIN_RETRY_S)
        self._note("all faults end", tuple(cluster.hosts), "")

    def _note(self, name: str, hosts: tuple[str, ...], text: str) -> None:
        self._cluster.history.add(FaultEvent(self._cluster.loop.time(), name, hosts, text))

    async def _carry_out(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at - self._cluster.loop.time()))
        begin, end = self._actions[fault.name]
        hosts = fault.hosts or ("network",)
        self._note(fault.name, hosts, str(fault))
        await begin(self, fault)
        await asyncio.sleep(fault.duration)
        if end is not None:
            await end(self, fault)
            self._note(f"end of {fault.name}", hosts, "")

    def _hosts(self, fault: Fault) -> list[SimulatedHost]:
        return [self._cluster.hosts[name] for name in fault.hosts]

    async def _crash(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.crash(silent=fault.name == "silent-crash")

    async def _restart(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            if not host.running:
                host.start()

    async def _stop(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            await host.stop()

    async def _pause(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.pause()

    async def _resume(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.resume()

    def _links(self, fault: Fault) -> list[tuple[str, str]]:
        if fault.name == "isolate":
            (lonely,) = fault.hosts
            others = [name for name in self._cluster.all_host_names() if name != lonely]
            return [link for other in others for link in ((lonely, other), (other, lonely))]
        first, second = fault.hosts
        return [(first, second)] if fault.name == "one-way" else [(first, second), (second, first)]

    async def _block(self, fault: Fault) -> None:
        for source, target in self._links(fault):
            self._cluster.fabric.block(source, target)

    async def _unblock(self, fault: Fault) -> None:
        for source, target in self._links(fault):
            self._cluster.fabric.unblock(source, target)

    async def _cut(self, fault: Fault) -> None:
        self._cluster.fabric.cut(*fault.hosts)
        self._cluster.listeners.cut(*fault.hosts)

    async def _cut_clients(self, fault: Fault) -> None:
        for connection in self._cluster.listeners.all_open:
            if self._random.random() < fault.strength:
                connection.cut()

    async def _slow(self, fault: Fault) -> None:
        conditions = self._cluster.fabric.conditions
        conditions.slow_probability, conditions.slow_latency = 0.2, fault.strength

    async def _fast(self, fault: Fault) -> None:
        self._cluster.fabric.conditions.slow_probability = 0.0

    async def _slow_host(self, fault: Fault) -> None:
        for name in fault.hosts:
            self._cluster.fabric.conditions.host_latency[name] = fault.strength

    async def _fast_host(self, fault: Fault) -> None:
        for name in fault.hosts:
            self._cluster.fabric.conditions.host_latency.pop(name, None)

    async def _slow_link(self, fault: Fault) -> None:
        first, second = fault.hosts
        self._cluster.fabric.conditions.link_latency[first, second] = fault.strength

    async def _fast_link(self, fault: Fault) -> None:
        first, second = fault.hosts
        self._cluster.fabric.conditions.link_latency.pop((first, second), None)

    def _ways_of_stale_owners(self, fault: Fault) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """From each owner to the brokers, and between it and the other coordinators in both directions."""
        to_brokers, to_coordinators = [], []
        for owner in fault.hosts:
            for host in self._cluster.hosts:
                if host.startswith("broker"):
                    to_brokers.append((owner, host))
                elif host.startswith("coordinator") and host != owner:
                    to_coordinators += [(owner, host), (host, owner)]
        return to_brokers, to_coordinators

    async def _begin_stale_owner(self, fault: Fault) -> None:
        to_brokers, to_coordinators = self._ways_of_stale_owners(fault)
        for way in to_brokers:
            self._cluster.fabric.conditions.link_latency[way] = fault.strength
        for way in to_coordinators:
            self._cluster.fabric.block(*way)

    async def _end_stale_owner(self, fault: Fault) -> None:
        to_brokers, to_coordinators = self._ways_of_stale_owners(fault)
        for way in to_brokers:
            self._cluster.fabric.conditions.link_latency.pop(way, None)
        for way in to_coordinators:
            self._cluster.fabric.unblock(*way)

    async def _drop(self, fault: Fault) -> None:
        self._cluster.fabric.conditions.drop_probability = fault.strength

    async def _keep(self, fault: Fault) -> None:
        self._cluster.fabric.conditions.drop_probability = 0.0

    async def _fail_disk(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.disk.fail_next_writes(int(fault.strength))
            host.disk.fail_next_syncs(1)

    async def _mend_disk(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.disk.fail_next_writes(0)
            host.disk.fail_next_syncs(0)

    async def _lose_disk(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.crash()
            host.disk.put_back({})

    async def _copy_disk(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            self._disk_copies[host.name] = host.disk.copy()

    async def _put_copy_back(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.crash()
            host.disk.put_back(self._disk_copies.pop(host.name))
            host.start()

    async def _jump(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.clock.skew_ms += int(fault.strength * 1000)

    async def _begin_drain(self, fault: Fault) -> None:
        for name in fault.hosts:
            self._drained[name] = None
            await self._ask_to_drain(name, undo=False)

    async def _end_drain(self, fault: Fault) -> None:
        for name in fault.hosts:
            await self._ask_to_drain(name, undo=True)

    async def _ask_to_drain(self, name: str, *, undo: bool) -> bool:
        """Whether the coordinator answered."""
        node_id = int(name.rpartition("-")[2])
        request = coordinator_pb2.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
        for coordinator in [host for host in self._cluster.hosts if host.startswith("coordinator-")]:
            channel = self._operator.connect(f"{coordinator}:{RPC_PORT}")
            try:
                answer, _ = await channel.call(DRAIN_SHARE_COORDINATOR, request, timeout_ms=DRAIN_TIMEOUT_MS)
            except CallFailed:
                continue
            if answer.error_code != ErrorCode.NOT_COORDINATOR:
                return True
        return False

    _Action = Callable[["FaultInjector", Fault], Awaitable[None]]
    _actions: dict[str, tuple[_Action, _Action | None]] = {
        "crash": (_crash, _restart),
        "silent-crash": (_crash, _restart),
        "stop": (_stop, _restart),
        "pause": (_pause, _resume),
        "partition": (_block, _unblock),
        "one-way": (_block, _unblock),
        "isolate": (_block, _unblock),
        "cut": (_cut, None),
        "cut-clients": (_cut_clients, None),
        "slow-network": (_slow, _fast),
        "slow-host": (_slow_host, _fast_host),
        "slow-link": (_slow_link, _fast_link),
        "drops": (_drop, _keep),
        "stale-owner": (_begin_stale_owner, _end_stale_owner),
        "disk-failure": (_fail_disk, _mend_disk),
        "clock-jump": (_jump, None),
        "disk-lost": (_lose_disk, _restart),
        "disk-older": (_copy_disk, _put_copy_back),
        "drain": (_begin_drain, _end_drain),
    }
