"""The schedule of faults, which is drawn from the seed, and the task that carries it out.

A fault begins at `at` and ends `duration` later; faults overlap. Each begin and end is a FaultEvent in the history.

`swarm.FAULT_KINDS` is the registry of the kinds; `KINDS` has those of this module.

Two kinds are not drawn, but chosen by tests whose rules know records by their values (`rules.log_losses`): `disk-lost`
(the host dies, and comes back with an empty disk) and `disk-older` (its disk is copied at the begin, and at the end it
dies and comes back with the copy).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DRAIN_SHARE_COORDINATOR
from kshare_rpc.network import CallFailed
from kshare_runtime.memory_store import DiskCopy
from support.simulation.cluster import EMBEDDED, ENGINES, KAFKA, RPC_PORT
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
Action = Callable[["FaultInjector", Fault], Awaitable[None]]
Effects = Callable[["FaultInjector", Fault], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault, under the name that its faults have."""

    name: str
    weight: int
    """How often it is drawn, relative to the others. 0: only tests choose it."""
    draw: Draw
    """A fault of this kind, from the hosts of the cluster."""
    begin: Action
    end: Action | None = None
    engines: Sequence[str] = ENGINES
    needs: Mapping[str, int] = field(default_factory=dict)
    """How many hosts of a role the cluster has at least where it is drawn."""
    effects: Effects | None = None
    """A number that grows whenever the fault acts: writes refused, messages lost. A fault during which it did not grow
    is not counted as met. None: it has acted once `begin` returned."""

    def is_possible(self, hosts: Sequence[str]) -> bool:
        return all(
            sum(host.rpartition("-")[0] == role for host in hosts) >= count for role, count in self.needs.items()
        )


def _some(draw: random.Random, hosts: Sequence[str], most: int) -> tuple[str, ...]:
    return tuple(sorted(draw.sample(list(hosts), draw.randint(1, min(most, len(hosts))))))


def _crash_as(name: str) -> Draw:
    def draw_crash(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
        several = 1 if draw.random() < 0.6 else len(hosts)
        duration = draw.choice((0.01, 0.3, 2.0, 12.0)) * (0.5 + draw.random())
        return Fault(at, name, _some(draw, hosts, several), duration)

    return draw_crash


def _power_loss(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "power-loss", tuple(sorted(hosts)), draw.choice((0.01, 1.0, 5.0)) * (0.5 + draw.random()))


def _stop(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "stop", _some(draw, hosts, 1), 0.2 + 3 * draw.random())


def _pause(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    return Fault(at, "pause", _some(draw, hosts, 1), draw.choice((0.2, 3.0, 15.0)) * (0.5 + draw.random()))


def _partition_as(name: str) -> Draw:
    def draw_partition(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
        pair = tuple(draw.sample(list(hosts), 2))
        return Fault(at, name, pair, draw.choice((0.5, 4.0, 15.0)) * (0.5 + draw.random()))

    return draw_partition


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


def _disk_as(name: str) -> Draw:
    def draw_disk(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
        return Fault(at, name, _some(draw, hosts, 1), 0.5 + 8 * draw.random())

    return draw_disk


def _clock(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    skew_s = draw.choice((-3600.0, -20.0, -1.0, 1.0, 20.0, 3600.0))
    return Fault(at, "clock-jump", _some(draw, hosts, 1), strength=skew_s)


def _drain(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    """A share coordinator shall be empty, and after a while it may have state partitions again."""
    share_coordinators = [host for host in hosts if host.startswith("share-coordinator")]
    return Fault(at, "drain", _some(draw, share_coordinators, 1), draw.choice((0.05, 0.5, 5.0)) * (0.5 + draw.random()))


OWNERS = ("coordinator", "share-coordinator")


def _stale_owner(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    """An owner of logs in the existing cluster is replaced while its requests to brokers are under way."""
    owners = [host for host in hosts if host.startswith(OWNERS)]
    duration = draw.choice((8.0, 16.0)) * (0.7 + 0.6 * draw.random())
    return Fault(at, "stale-owner", _some(draw, owners, 1), duration, draw.choice((1.0, 4.0, 9.0)))


def draw_faults(
    draw: random.Random,
    hosts: Sequence[str],
    *,
    start: float,
    end: float,
    count: int,
    kinds_of_fault: Sequence[FaultKind] | None = None,
) -> list[Fault]:
    """`count` faults that begin between `start` and `end`, in order of time; none where no kind is possible.

    Without `kinds_of_fault`: of the kinds of this module that hosts with disks have.
    """
    of_disks = [kind for kind in KINDS if EMBEDDED in kind.engines]
    known = of_disks if kinds_of_fault is None else kinds_of_fault
    possible = [kind for kind in known if kind.weight and kind.is_possible(hosts)]
    if not possible:
        return []
    kinds = draw.choices(possible, [kind.weight for kind in possible], k=count)
    faults = [kind.draw(draw, hosts, start + (end - start) * draw.random()) for kind in kinds]
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
    """Carries out faults on a cluster. `heal` ends them all. `kinds`: those that it knows (all of this module)."""

    def __init__(
        self, cluster: FaultyCluster, randomness: random.Random, kinds: Sequence[FaultKind] | None = None
    ) -> None:
        self.cluster = cluster
        self._kinds = {kind.name: kind for kind in (KINDS if kinds is None else kinds)}
        self.met: Counter[str] = Counter()
        """How many faults of each kind have acted."""
        self._random = randomness
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._operator = SimulatedNetwork(cluster.fabric, Incarnation("operator", 1))
        self._drained: dict[str, None] = {}
        self.drain_count = 0
        """How often the coordinator took a drain."""
        self.cut_client_count = 0
        self._disk_copies: dict[str, DiskCopy] = {}

    def start(self, faults: Sequence[Fault]) -> None:
        loop = self.cluster.loop
        for fault in faults:
            self._tasks.append(loop.create_task(self._carry_out(fault), name=f"fault:{fault.name}"))

    async def heal(self) -> None:
        """No more faults: the network is whole, every host runs."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        cluster = self.cluster
        cluster.fabric.heal()
        for host in cluster.hosts.values():
            host.disk.fail_next_writes(0)
            host.disk.fail_next_syncs(0)
            host.disk.is_full = False
            host.disk_conditions.heal()
            host.resume()
            if host.incarnation is not None and host.incarnation.has_read_damage:
                host.crash()  # its health check reports the damage, and an operator starts it on a good machine
            if not host.running:
                host.start()
        for name in [name for name in self._drained if name in cluster.hosts]:
            while not await self._ask_to_drain(name, undo=True):
                await asyncio.sleep(DRAIN_RETRY_S)
        self._note("all faults end", tuple(cluster.hosts), "")

    def _note(self, name: str, hosts: tuple[str, ...], text: str) -> None:
        self.cluster.history.add(FaultEvent(self.cluster.loop.time(), name, hosts, text))

    async def _carry_out(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at - self.cluster.loop.time()))
        kind = self._kinds[fault.name]
        hosts = fault.hosts or ("network",)
        before = kind.effects(self, fault) if kind.effects is not None else -1
        try:
            self._note(fault.name, hosts, str(fault))
            await kind.begin(self, fault)
            await asyncio.sleep(fault.duration)
            if kind.end is not None:
                await kind.end(self, fault)
                self._note(f"end of {fault.name}", hosts, "")
        finally:  # also when the fault is called off
            after = kind.effects(self, fault) if kind.effects is not None else 0
            self.met[kind.name] += after > before

    def hosts(self, fault: Fault) -> list[SimulatedHost]:
        """Those that are still part of the cluster."""
        return [self.cluster.hosts[name] for name in fault.hosts if name in self.cluster.hosts]

    async def crash(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.crash(silent=fault.name == "silent-crash")

    async def restart(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            if not host.running:
                host.start()

    async def stop(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            await host.stop()

    async def pause(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.pause()

    async def resume(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.resume()

    def links(self, fault: Fault) -> list[tuple[str, str]]:
        if fault.name == "isolate":
            (lonely,) = fault.hosts
            others = [name for name in self.cluster.all_host_names() if name != lonely]
            return [link for other in others for link in ((lonely, other), (other, lonely))]
        first, second = fault.hosts
        return [(first, second)] if fault.name == "one-way" else [(first, second), (second, first)]

    async def block(self, fault: Fault) -> None:
        for source, target in self.links(fault):
            self.cluster.fabric.block(source, target)

    async def unblock(self, fault: Fault) -> None:
        for source, target in self.links(fault):
            self.cluster.fabric.unblock(source, target)

    async def cut(self, fault: Fault) -> None:
        self.cluster.fabric.cut(*fault.hosts)
        self.cluster.listeners.cut(*fault.hosts)

    async def cut_clients(self, fault: Fault) -> None:
        for connection in self.cluster.listeners.all_open:
            if self._random.random() < fault.strength:
                connection.cut()
                self.cut_client_count += 1

    async def slow(self, fault: Fault) -> None:
        conditions = self.cluster.fabric.conditions
        conditions.slow_probability, conditions.slow_latency = 0.2, fault.strength

    async def fast(self, fault: Fault) -> None:
        self.cluster.fabric.conditions.slow_probability = 0.0

    async def slow_host(self, fault: Fault) -> None:
        for name in fault.hosts:
            self.cluster.fabric.conditions.host_latency[name] = fault.strength

    async def fast_host(self, fault: Fault) -> None:
        for name in fault.hosts:
            self.cluster.fabric.conditions.host_latency.pop(name, None)

    async def slow_link(self, fault: Fault) -> None:
        first, second = fault.hosts
        self.cluster.fabric.conditions.link_latency[first, second] = fault.strength

    async def fast_link(self, fault: Fault) -> None:
        first, second = fault.hosts
        self.cluster.fabric.conditions.link_latency.pop((first, second), None)

    def _ways_of_stale_owners(self, fault: Fault) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """From each owner to the brokers, and between it and the other coordinators in both directions."""
        to_brokers, to_coordinators = [], []
        for owner in fault.hosts:
            for host in self.cluster.hosts:
                if host.startswith("broker"):
                    to_brokers.append((owner, host))
                elif host.startswith("coordinator") and host != owner:
                    to_coordinators += [(owner, host), (host, owner)]
        return to_brokers, to_coordinators

    async def begin_stale_owner(self, fault: Fault) -> None:
        to_brokers, to_coordinators = self._ways_of_stale_owners(fault)
        for way in to_brokers:
            self.cluster.fabric.conditions.link_latency[way] = fault.strength
        for way in to_coordinators:
            self.cluster.fabric.block(*way)

    async def end_stale_owner(self, fault: Fault) -> None:
        to_brokers, to_coordinators = self._ways_of_stale_owners(fault)
        for way in to_brokers:
            self.cluster.fabric.conditions.link_latency.pop(way, None)
        for way in to_coordinators:
            self.cluster.fabric.unblock(*way)

    async def drop(self, fault: Fault) -> None:
        self.cluster.fabric.conditions.drop_probability = fault.strength

    async def keep(self, fault: Fault) -> None:
        self.cluster.fabric.conditions.drop_probability = 0.0

    async def fail_disk(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.disk.fail_next_writes(int(fault.strength))
            host.disk.fail_next_syncs(1)

    async def mend_disk(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.disk.fail_next_writes(0)
            host.disk.fail_next_syncs(0)

    async def lose_disk(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.crash()
            host.disk.put_back({})

    async def copy_disk(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            self._disk_copies[host.name] = host.disk.copy()

    async def put_copy_back(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.crash()
            host.disk.put_back(self._disk_copies.pop(host.name))
            host.start()

    async def jump(self, fault: Fault) -> None:
        for host in self.hosts(fault):
            host.clock.skew_ms += int(fault.strength * 1000)

    async def begin_drain(self, fault: Fault) -> None:
        for name in fault.hosts:
            self._drained[name] = None
            self.drain_count += await self._ask_to_drain(name, undo=False)

    async def end_drain(self, fault: Fault) -> None:
        for name in fault.hosts:
            await self._ask_to_drain(name, undo=True)

    async def _ask_to_drain(self, name: str, *, undo: bool) -> bool:
        """Whether the coordinator answered."""
        node_id = int(name.rpartition("-")[2])
        request = coordinator_pb2.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
        for coordinator in [host for host in self.cluster.hosts if host.startswith("coordinator-")]:
            channel = self._operator.connect(f"{coordinator}:{RPC_PORT}")
            try:
                answer, _ = await channel.call(DRAIN_SHARE_COORDINATOR, request, timeout_ms=DRAIN_TIMEOUT_MS)
            except CallFailed:
                continue
            if answer.error_code != ErrorCode.NOT_COORDINATOR:
                return True
        return False


# Whether a fault acted


def _deaths(injector: FaultInjector, fault: Fault) -> int:
    return sum(host.death_count for host in injector.hosts(fault))


def _waits(injector: FaultInjector, fault: Fault) -> int:
    """Steps that wait until their hosts go on."""
    return sum(host.deferred_count for host in injector.hosts(fault))


def _blocked(injector: FaultInjector, fault: Fault) -> int:
    return sum(injector.cluster.fabric.blocked_count[link] for link in injector.links(fault))


def _cut_streams(injector: FaultInjector, fault: Fault) -> int:
    return injector.cluster.fabric.cut_count


def _cut_connections(injector: FaultInjector, fault: Fault) -> int:
    return injector.cut_client_count


def _delayed(injector: FaultInjector, fault: Fault) -> int:
    return injector.cluster.fabric.delayed_count[fault.name]


def _dropped(injector: FaultInjector, fault: Fault) -> int:
    return injector.cluster.fabric.dropped_count


def _refused_writes(injector: FaultInjector, fault: Fault) -> int:
    return sum(host.disk.refused_count for host in injector.hosts(fault))


def _drains(injector: FaultInjector, fault: Fault) -> int:
    return injector.drain_count


KINDS: tuple[FaultKind, ...] = (
    FaultKind(
        name="crash",
        weight=3,
        draw=_crash_as("crash"),
        begin=FaultInjector.crash,
        end=FaultInjector.restart,
        effects=_deaths,
    ),
    FaultKind(
        name="silent-crash",
        weight=3,
        draw=_crash_as("silent-crash"),
        begin=FaultInjector.crash,
        end=FaultInjector.restart,
        effects=_deaths,
    ),
    FaultKind(
        name="power-loss",
        weight=3,
        draw=_power_loss,
        begin=FaultInjector.crash,
        end=FaultInjector.restart,
        effects=_deaths,
    ),
    FaultKind(name="stop", weight=1, draw=_stop, begin=FaultInjector.stop, end=FaultInjector.restart, effects=_deaths),
    FaultKind(name="pause", weight=3, draw=_pause, begin=FaultInjector.pause, end=FaultInjector.resume, effects=_waits),
    FaultKind(
        name="partition",
        weight=2,
        draw=_partition_as("partition"),
        begin=FaultInjector.block,
        end=FaultInjector.unblock,
        effects=_blocked,
    ),
    FaultKind(
        name="one-way",
        weight=2,
        draw=_partition_as("one-way"),
        begin=FaultInjector.block,
        end=FaultInjector.unblock,
        effects=_blocked,
    ),
    FaultKind(
        name="isolate", weight=2, draw=_isolate, begin=FaultInjector.block, end=FaultInjector.unblock, effects=_blocked
    ),
    FaultKind(name="cut", weight=2, draw=_cut, begin=FaultInjector.cut, effects=_cut_streams),
    FaultKind(
        name="cut-clients", weight=2, draw=_cut_clients, begin=FaultInjector.cut_clients, effects=_cut_connections
    ),
    FaultKind(
        name="slow-network", weight=2, draw=_slow, begin=FaultInjector.slow, end=FaultInjector.fast, effects=_delayed
    ),
    FaultKind(
        name="slow-host",
        weight=2,
        draw=_slow_host,
        begin=FaultInjector.slow_host,
        end=FaultInjector.fast_host,
        effects=_delayed,
    ),
    FaultKind(
        name="slow-link",
        weight=3,
        draw=_slow_link,
        begin=FaultInjector.slow_link,
        end=FaultInjector.fast_link,
        effects=_delayed,
    ),
    FaultKind(name="drops", weight=2, draw=_drops, begin=FaultInjector.drop, end=FaultInjector.keep, effects=_dropped),
    FaultKind(name="clock-jump", weight=1, draw=_clock, begin=FaultInjector.jump),
    FaultKind(
        name="drain",
        weight=3,
        draw=_drain,
        begin=FaultInjector.begin_drain,
        end=FaultInjector.end_drain,
        effects=_drains,
        needs={"share-coordinator": 2},
    ),
    FaultKind(
        name="disk-failure",
        weight=3,
        draw=_disk,
        begin=FaultInjector.fail_disk,
        end=FaultInjector.mend_disk,
        effects=_refused_writes,
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="disk-lost",
        weight=0,
        draw=_disk_as("disk-lost"),
        begin=FaultInjector.lose_disk,
        end=FaultInjector.restart,
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="disk-older",
        weight=0,
        draw=_disk_as("disk-older"),
        begin=FaultInjector.copy_disk,
        end=FaultInjector.put_copy_back,
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="stale-owner",
        weight=5,
        draw=_stale_owner,
        begin=FaultInjector.begin_stale_owner,
        end=FaultInjector.end_stale_owner,
        engines=(KAFKA,),
    ),
)
"""The kinds of this module."""
