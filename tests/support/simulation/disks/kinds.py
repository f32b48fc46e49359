"""The kinds of fault of disks, and of hosts that die while they write. `host_disk.HostDisk` carries them out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from support.simulation.cluster import EMBEDDED
from support.simulation.disks.host_disk import HostDisk
from support.simulation.faults import Draw, Fault, FaultInjector, FaultKind

POLL_S = 0.02
HOSTS_WITH_DISKS = ("coordinator", "share-coordinator", "leader")


def _with_disk(draw: random.Random, hosts: Sequence[str]) -> tuple[str, ...]:
    """One host that stores something, or any if none does."""
    return (draw.choice([host for host in hosts if host.rpartition("-")[0] in HOSTS_WITH_DISKS] or list(hosts)),)


def _draw(name: str, *, longest_s: float, strengths: Sequence[float]) -> Draw:
    def draw_fault(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
        duration = longest_s * draw.choice((0.1, 0.5, 1.0)) * (0.3 + 0.7 * draw.random())
        return Fault(at, name, _with_disk(draw, hosts), duration, draw.choice(strengths))

    return draw_fault


def _draw_full_disk(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
    """One disk, or the one that all hosts share."""
    full = _with_disk(draw, hosts) if draw.random() < 0.8 else tuple(sorted(hosts))
    return Fault(at, "full-disk", full, draw.choice((0.5, 4.0, 12.0)) * (0.5 + draw.random()))


def _disks(injector: FaultInjector, fault: Fault) -> list[HostDisk]:
    return [host.disk_conditions for host in injector.hosts(fault)]


# What they do


def _read_anew(injector: FaultInjector, fault: Fault) -> None:
    """A node reads most when it starts; what it uses often is in its memory."""
    for host in injector.hosts(fault):
        if fault.strength < 1 and host.running:
            host.crash()
            host.start()


async def _fail_reads(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.failing_reads = fault.strength
    _read_anew(injector, fault)


async def _let_reads_succeed(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.failing_reads = 0.0


async def _flip_bits(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.flipping_reads = fault.strength
    _read_anew(injector, fault)


async def _flip_no_bits(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.flipping_reads = 0.0


async def _be_slow(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.slow_sync_s = fault.strength


async def _be_fast(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.slow_sync_s = 0.0


async def _hang(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.hang()


async def _go_on(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.go_on()


async def _fill(injector: FaultInjector, fault: Fault) -> None:
    for host in injector.hosts(fault):
        host.disk.is_full = True


async def _make_room(injector: FaultInjector, fault: Fault) -> None:
    for host in injector.hosts(fault):
        host.disk.is_full = False


async def _fail_a_write_and_die(injector: FaultInjector, fault: Fault) -> None:
    """A write is answered as failed, and the host dies before the store is mended, so that nobody takes it back."""
    for host in injector.hosts(fault):
        refused = host.disk.refused_count
        host.disk.fail_next_writes(1, "Input/output error")
        host.disk.fail_next_syncs(1)
        deadline = injector.cluster.loop.time() + fault.duration
        while host.disk.refused_count == refused and injector.cluster.loop.time() < deadline:
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(fault.strength)
        host.disk.fail_next_writes(0)
        host.disk.fail_next_syncs(0)
        host.crash()


async def _cut_power_between_syncs(injector: FaultInjector, fault: Fault) -> None:
    """Begun writes wait for a sync, which never comes."""
    loop = injector.cluster.loop
    for host in injector.hosts(fault):
        host.disk.holds_syncs = True
        deadline = loop.time() + fault.duration
        while not host.disk.waiting_count and loop.time() < deadline:
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(fault.strength)
        host.disk.holds_syncs = False
        host.crash(silent=True)


async def _die_at_write(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.die_at_write(int(fault.strength))


async def _die_at_step(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.die_at_step(int(fault.strength))


async def _restart(injector: FaultInjector, fault: Fault) -> None:
    for disk in _disks(injector, fault):
        disk.live_on()
    await injector.restart(fault)


# Whether they acted


def _count(of_disk: Callable[[HostDisk], int]) -> Callable[[FaultInjector, Fault], int]:
    return lambda injector, fault: sum(map(of_disk, _disks(injector, fault)))


def _refused(injector: FaultInjector, fault: Fault) -> int:
    return sum(host.disk.refused_count for host in injector.hosts(fault))


DISK_KINDS: tuple[FaultKind, ...] = (
    FaultKind(
        name="failing-reads",
        weight=2,
        draw=_draw("failing-reads", longest_s=8.0, strengths=(0.02, 0.3, 1.0)),
        begin=_fail_reads,
        end=_let_reads_succeed,
        effects=_count(lambda disk: disk.failed_read_count),
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="flipped-bits",
        weight=2,
        draw=_draw("flipped-bits", longest_s=8.0, strengths=(0.02, 0.3, 1.0)),
        begin=_flip_bits,
        end=_flip_no_bits,
        effects=_count(lambda disk: disk.flipped_count),
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="slow-disk",
        weight=2,
        draw=_draw("slow-disk", longest_s=10.0, strengths=(0.02, 0.2, 2.0)),
        begin=_be_slow,
        end=_be_fast,
        effects=_count(lambda disk: disk.delayed_count),
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="hung-disk",
        weight=2,
        draw=_draw("hung-disk", longest_s=15.0, strengths=(0.0,)),
        begin=_hang,
        end=_go_on,
        effects=_count(lambda disk: disk.delayed_count),
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="full-disk",
        weight=2,
        draw=_draw_full_disk,
        begin=_fill,
        end=_make_room,
        effects=_refused,
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="unknown-write",
        weight=2,
        draw=_draw("unknown-write", longest_s=3.0, strengths=(0.0, 0.3, 0.8)),
        begin=_fail_a_write_and_die,
        end=_restart,
        effects=_refused,
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="power-cut",
        weight=2,
        draw=_draw("power-cut", longest_s=4.0, strengths=(0.01, 0.1, 0.5)),
        begin=_cut_power_between_syncs,
        end=_restart,
        effects=_count(lambda disk: disk.kept_count + disk.lost_count),
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="crash-between-writes",
        weight=3,
        draw=_draw("crash-between-writes", longest_s=4.0, strengths=(1, 1, 2, 3, 5, 8)),
        begin=_die_at_write,
        end=_restart,
        effects=_count(lambda disk: disk.death_count),
        engines=(EMBEDDED,),
    ),
    FaultKind(
        name="crash-between-steps",
        weight=3,
        draw=_draw("crash-between-steps", longest_s=4.0, strengths=(1, 2, 5, 10, 30, 100)),
        begin=_die_at_step,
        end=_restart,
        effects=_count(lambda disk: disk.death_count),
    ),
)
"""The kinds of this module."""
