"""The kinds of fault of disks, and of hosts that die while they write. `host_disk.HostDisk` carries them out.

Two are not drawn with the others, but only where the rules know records by their values (`lost_logs`): `disk-lost` (the
host dies, and comes back with an empty disk) and `disk-older` (its disk is copied at the begin, and at the end it dies
and comes back with the copy).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kshare_runtime.memory_store import DiskCopy
from support.simulation.cluster import EMBEDDED
from support.simulation.disks.host_disk import HostDisk
from support.simulation.fault_kinds.acting import each_disk, each_host, of_disks, of_hosts
from support.simulation.fault_kinds.drawing import about, between, either, everyone, one, one_of
from support.simulation.fault_kinds.hosts import restart
from support.simulation.faults import Fault, FaultInjector, FaultKind
from support.simulation.hosts import SimulatedHost

POLL_S = 0.02


# What they do


def _read_anew(host: SimulatedHost, fault: Fault) -> None:
    """A node reads most when it starts; what it uses often is in its memory."""
    if fault.strength < 1 and host.running:
        host.crash()
        host.start()


@each_host
def _fail_reads(host: SimulatedHost, fault: Fault) -> None:
    host.disk_conditions.failing_reads = fault.strength
    _read_anew(host, fault)


@each_disk
def _let_reads_succeed(disk: HostDisk, fault: Fault) -> None:
    disk.failing_reads = 0.0


@each_host
def _flip_bits(host: SimulatedHost, fault: Fault) -> None:
    host.disk_conditions.flipping_reads = fault.strength
    _read_anew(host, fault)


@each_disk
def _flip_no_bits(disk: HostDisk, fault: Fault) -> None:
    disk.flipping_reads = 0.0


@each_host
def _misdirect_reads(host: SimulatedHost, fault: Fault) -> None:
    host.disk_conditions.misdirected_reads = fault.strength
    _read_anew(host, fault)


@each_disk
def _read_in_place(disk: HostDisk, fault: Fault) -> None:
    disk.misdirected_reads = 0.0


@each_disk
def _be_slow(disk: HostDisk, fault: Fault) -> None:
    disk.slow_sync_s = fault.strength


@each_disk
def _be_fast(disk: HostDisk, fault: Fault) -> None:
    disk.slow_sync_s = 0.0


@each_host
def _fill(host: SimulatedHost, fault: Fault) -> None:
    host.disk.is_full = True


@each_host
def _make_room(host: SimulatedHost, fault: Fault) -> None:
    host.disk.is_full = False


@each_host
def _refuse(host: SimulatedHost, fault: Fault) -> None:
    host.disk.fail_next_writes(int(fault.strength))
    host.disk.fail_next_syncs(1)


@each_host
def _refuse_no_more(host: SimulatedHost, fault: Fault) -> None:
    host.disk.fail_next_writes(0)
    host.disk.fail_next_syncs(0)


async def _fail_a_write_and_die(injector: FaultInjector, fault: Fault) -> None:
    """A write is answered as failed, and the host dies before the store is mended, so that nobody takes it back."""
    for host in injector.hosts(fault):
        refused = host.disk.refused_count
        host.disk.fail_next_writes(1, "Input/output error")
        host.disk.fail_next_syncs(1)
        deadline = injector.cluster.loop.now_s + fault.duration
        while host.disk.refused_count == refused and injector.cluster.loop.now_s < deadline:
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
        deadline = loop.now_s + fault.duration
        while not host.disk.waiting_count and loop.now_s < deadline:
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(fault.strength)
        host.disk.holds_syncs = False
        host.crash(silent=True)


async def _restart(injector: FaultInjector, fault: Fault) -> None:
    for host in injector.hosts(fault):
        host.disk_conditions.live_on()
    await restart(injector, fault)


@each_host
def _lose_disk(host: SimulatedHost, fault: Fault) -> None:
    host.crash()
    host.disk.put_back(DiskCopy())


async def _copy_disk(injector: FaultInjector, fault: Fault) -> None:
    for host in injector.hosts(fault):
        injector.disk_copies[host.name, fault.at] = host.disk.copy()


async def _put_copy_back(injector: FaultInjector, fault: Fault) -> None:
    for host in injector.hosts(fault):
        host.crash()
        host.disk.put_back(injector.disk_copies.pop((host.name, fault.at)))
        host.start()


hang = each_disk(lambda disk, fault: disk.hang())
go_on = each_disk(lambda disk, fault: disk.go_on())
die_at_write = each_disk(lambda disk, fault: disk.die_at_write(int(fault.strength)))
die_at_step = each_disk(lambda disk, fault: disk.die_at_step(int(fault.strength)))

# Whether they acted

failed_reads = of_disks(lambda disk: disk.failed_read_count)
flipped = of_disks(lambda disk: disk.flipped_count)
misdirected = of_disks(lambda disk: disk.misdirected_count)
delayed = of_disks(lambda disk: disk.delayed_count)
deaths = of_disks(lambda disk: disk.death_count)
begun_writes = of_disks(lambda disk: disk.kept_count + disk.lost_count)
host_deaths = of_hosts(lambda host: host.death_count)
refused = of_hosts(lambda host: host.disk.refused_count)

with_disk = one_of("coordinator", "share-coordinator", "leader")
A_WHILE = about(0.5, 2.5, 5.0)
READS = (0.02, 0.3, 1.0)
MISDIRECTED_SHARE = 0.3
"""Of all seeds. Half of them have value files."""

_ALL_KINDS: tuple[FaultKind, ...] = (
    FaultKind("disk-failure", 3, with_disk, between(0.5, 4.5), _refuse, _refuse_no_more, refused, (2, 10_000)),
    FaultKind("failing-reads", 2, with_disk, A_WHILE, _fail_reads, _let_reads_succeed, failed_reads, READS),
    FaultKind("flipped-bits", 2, with_disk, A_WHILE, _flip_bits, _flip_no_bits, flipped, READS),
    FaultKind("slow-disk", 2, with_disk, A_WHILE, _be_slow, _be_fast, delayed, (0.02, 0.2, 2.0)),
    FaultKind("hung-disk", 2, with_disk, about(1.0, 5.0, 10.0), hang, go_on, delayed),
    FaultKind("full-disk", 2, either(0.8, with_disk, everyone), about(0.5, 4.0, 12.0), _fill, _make_room, refused),
    FaultKind("unknown-write", 2, with_disk, A_WHILE, _fail_a_write_and_die, _restart, refused, (0.0, 0.3, 0.8)),
    FaultKind("power-cut", 2, with_disk, A_WHILE, _cut_power_between_syncs, _restart, begun_writes, (0.01, 0.1, 0.5)),
    FaultKind("crash-between-writes", 3, with_disk, A_WHILE, die_at_write, _restart, deaths, (1, 1, 2, 3, 5, 8)),
    FaultKind(
        "misdirected-reads",
        0,
        one_of("leader"),
        A_WHILE,
        _misdirect_reads,
        _read_in_place,
        misdirected,
        READS,
        seeds_share=MISDIRECTED_SHARE,
    ),
    FaultKind("disk-lost", 0, one, between(0.5, 8.5), _lose_disk, restart, host_deaths),
    FaultKind("disk-older", 0, one, between(0.5, 8.5), _copy_disk, _put_copy_back, host_deaths),
)

DISK_KINDS: tuple[FaultKind, ...] = (
    *(replace(kind, engines=(EMBEDDED,)) for kind in _ALL_KINDS),
    FaultKind("crash-between-steps", 3, one, A_WHILE, die_at_step, _restart, deaths, (1, 2, 5, 10, 30, 100)),
)
"""The kinds of this module: all but the last need disks, which hosts of the kafka engine do not have."""
