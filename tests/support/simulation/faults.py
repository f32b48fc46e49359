"""The schedule of faults, which is drawn from the seed, and the task that carries it out.

A fault begins at `at` and ends `duration` later; faults overlap. Each begin and end is a FaultEvent in the history.
`fault_kinds` has the kinds, as tables, and `swarm.FAULT_KINDS` is the registry of them all.
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
from support.simulation.cluster import ENGINES, RPC_PORT
from support.simulation.connections import ClientListeners
from support.simulation.evidence import Impairment
from support.simulation.fault_kinds.drawing import Duration, Hosts
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


Action = Callable[["FaultInjector", Fault], Awaitable[None]]
Effects = Callable[["FaultInjector", Fault], int]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault, under the name that its faults have."""

    name: str
    weight: int
    """How often it is drawn, relative to the others. 0: it is not drawn with them."""
    hits: Hosts
    lasts: Duration
    begin: Action
    end: Action | None
    effects: Effects
    """A number that grows whenever the fault acts: writes refused, messages lost. A fault during which it did not grow
    is not counted as met: it was only asked for."""
    strengths: Sequence[float] = (0.0,)
    engines: Sequence[str] = ENGINES
    needs: Mapping[str, int] = field(default_factory=dict)
    """How many hosts of a role the cluster has at least where it is drawn."""
    seeds_share: float = 0.0
    """The share of seeds that have one such fault, from a random stream of its own. It needs no weight."""

    @property
    def is_drawn(self) -> bool:
        """Whether seeds have it, and not only tests choose it."""
        return self.weight > 0 or self.seeds_share > 0

    def draw(self, source: random.Random, hosts: Sequence[str], at: float) -> Fault:
        """A fault of this kind, from the hosts of the cluster."""
        hit, duration = self.hits(source, hosts), self.lasts(source)
        return Fault(at, self.name, hit, duration, source.choice(self.strengths))

    def is_possible(self, hosts: Sequence[str]) -> bool:
        return all(
            sum(host.rpartition("-")[0] == role for host in hosts) >= count for role, count in self.needs.items()
        )


def draw_faults(
    draw: random.Random,
    hosts: Sequence[str],
    *,
    start: float,
    end: float,
    count: int,
    kinds_of_fault: Sequence[FaultKind],
) -> list[Fault]:
    """`count` faults that begin between `start` and `end`, in order of time; none where no kind is possible."""
    possible = [kind for kind in kinds_of_fault if kind.weight and kind.is_possible(hosts)]
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

    @property
    def leaving(self) -> Mapping[str, None]: ...

    def all_host_names(self) -> list[str]: ...


class FaultInjector:
    """Carries out faults of these kinds on a cluster. `heal` ends them all."""

    def __init__(self, cluster: FaultyCluster, randomness: random.Random, kinds: Sequence[FaultKind]) -> None:
        self.cluster = cluster
        self._kinds = {kind.name: kind for kind in kinds}
        self.met: Counter[str] = Counter()
        """How many faults of each kind have acted."""
        self.random = randomness
        self._tasks: list[asyncio.Task[None]] = []
        self._operator = SimulatedNetwork(cluster.fabric, Incarnation("operator", 1))
        self._drained: dict[str, None] = {}
        self.impairments: list[Impairment] = []
        """The faults that have ended, with the times at which they really began and ended."""
        self.clients_hit: dict[Fault, list[str]] = {}
        """The client machines that a fault of connections has hit."""
        self.drain_counts: Counter[str] = Counter()
        """How often each host was drained, as the coordinator confirmed."""
        """How often the coordinator took a drain."""
        self.disk_copies: dict[tuple[str, float], DiskCopy] = {}
        """What is put back at the end of a fault, by host and begin of the fault."""
        self.unfinished: dict[str, Callable[[], Awaitable[None]]] = {}
        """What has to follow a fault also where the fault is called off, by host."""
        self._first_hosts = frozenset(cluster.hosts)
        self.met_by_joined = 0
        """How many faults of hosts that joined have acted."""
        self.blocked_links: dict[Fault, list[tuple[str, str]]] = {}
        """Links that are unblocked at the end of a fault: hosts that have joined since are not among them."""

    def start(self, faults: Sequence[Fault]) -> None:
        loop = self.cluster.loop
        for fault in faults:
            self._tasks.append(loop.create_task(self._carry_out(fault), name=f"fault:{fault.name}"))

    async def heal(self) -> None:
        """No more faults: the network is whole, every host runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        cluster = self.cluster
        cluster.fabric.heal()
        cluster.listeners.heal()
        for host in cluster.hosts.values():
            host.clock.set_rate(1.0)
            host.disk.fail_next_writes(0)
            host.disk.fail_next_syncs(0)
            host.disk.is_full = False
            host.disk_conditions.heal()
            host.resume()
            if host.incarnation is not None and host.incarnation.has_read_damage:
                host.crash()  # its health check reports the damage, and an operator starts it on a good machine
            if not host.running:
                host.start()
        for name in list(self._drained):
            while self._stays(name) and await self._ask_to_drain(name, undo=True) is None:
                await asyncio.sleep(DRAIN_RETRY_S)
        for name in list(self.unfinished):
            await self.unfinished.pop(name)()
        self._note("all faults end", tuple(cluster.hosts), "")

    def _note(self, name: str, hosts: tuple[str, ...], text: str) -> None:
        self.cluster.history.add(FaultEvent(self.cluster.loop.now_s, name, hosts, text))

    async def _carry_out(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at - self.cluster.loop.now_s))
        kind = self._kinds[fault.name]
        hosts = fault.hosts or ("network",)
        begin = self.cluster.loop.now_s
        before = kind.effects(self, fault)
        try:
            self._note(fault.name, hosts, str(fault))
            await kind.begin(self, fault)
            await asyncio.sleep(fault.duration)
            if kind.end is not None:
                await kind.end(self, fault)
                self._note(f"end of {fault.name}", hosts, "")
        finally:  # also when the fault is called off
            self._note_impairment(kind, fault, begin)
            has_acted = kind.effects(self, fault) > before
            self.met[kind.name] += has_acted
            self.met_by_joined += has_acted and not self._first_hosts.issuperset(fault.hosts)

    def _note_impairment(self, kind: FaultKind, fault: Fault, begin: float) -> None:
        lasts = fault.duration if kind.end is None else 0.0  # what ends by itself is not called off
        end = max(self.cluster.loop.now_s, begin + lasts)
        hosts = tuple(dict.fromkeys(self.clients_hit.get(fault, fault.hosts)))
        if hosts or fault not in self.clients_hit:
            self.impairments.append(Impairment(begin, end, hosts, fault.name, fault.strength))

    def hosts(self, fault: Fault) -> list[SimulatedHost]:
        """Those that are still part of the cluster."""
        return [self.cluster.hosts[name] for name in fault.hosts if name in self.cluster.hosts]

    async def drain(self, fault: Fault) -> None:
        for name in fault.hosts:
            self._drained[name] = None
            self.drain_counts[name] += await self._ask_to_drain(name, undo=False) == ErrorCode.NONE

    async def undo_drain(self, fault: Fault) -> None:
        for name in filter(self._stays, fault.hosts):
            await self._ask_to_drain(name, undo=True)

    def _stays(self, name: str) -> bool:
        """Not a node that leaves: its operator stops it once nothing is left on it."""
        return name in self.cluster.hosts and name not in self.cluster.leaving

    async def _ask_to_drain(self, name: str, *, undo: bool) -> int | None:
        """The error code of the active coordinator's answer: it takes no drain of a node that is not registered."""
        node_id = int(name.rpartition("-")[2])
        request = coordinator_pb2.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
        for coordinator in [host for host in self.cluster.hosts if host.startswith("coordinator-")]:
            channel = self._operator.connect(f"{coordinator}:{RPC_PORT}")
            try:
                answer, _ = await channel.call(DRAIN_SHARE_COORDINATOR, request, timeout_ms=DRAIN_TIMEOUT_MS)
            except CallFailed:
                continue
            if answer.error_code != ErrorCode.NOT_COORDINATOR:
                return int(answer.error_code)
        return None
