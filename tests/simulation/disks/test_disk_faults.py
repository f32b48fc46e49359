"""Each kind of fault of a disk does what it says to a host, is met in seeds, and shows a bug that only it can show."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kshare_core.errors import StorageFailure
from kshare_rpc.network import Network
from kshare_runtime import checksummed_rows
from kshare_runtime.checksummed_rows import sealed
from kshare_runtime.large_values.files import DamagedValue, ValueFiles
from kshare_runtime.ports import Environment, KeyValueStore, Write
from support.simulation.connections import ClientListeners
from support.simulation.disks.host_disk import PAGE_BYTES, SECTOR_BYTES
from support.simulation.disks.kinds import DISK_KINDS
from support.simulation.faults import Fault, FaultInjector, FaultKind
from support.simulation.history import History
from support.simulation.hosts import Node, SimulatedHost
from support.simulation.loop import VirtualLoop
from support.simulation.network import SimulatedFabric
from support.simulation.plan import draw_plan
from support.simulation.scenario import SeedRun
from support.simulation.seeds.coverage import DAMAGED
from support.simulation.swarm import FAULT_KINDS

FAMILY = "rows"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Roles log each fault; the trace says more."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Clerk:
    """A node with one store. `work` runs in its host when it starts."""

    def __init__(self, environment: Environment, work: Callable[[Clerk], Coroutine[Any, Any, None]]) -> None:
        self._environment = environment
        self._work = work
        self.store: KeyValueStore
        self.found: list[bytes] = []
        self.durable: list[bytes] = []
        self.failed: list[bytes] = []

    async def start(self) -> None:
        self.store = self._environment.open_store("clerk")
        self.found = [key for key, _ in self.store.scan(FAMILY, b"")]
        self._task = asyncio.get_running_loop().create_task(self._work(self))

    async def stop(self, grace_ms: int) -> None:
        self.store.close()

    def problems(self) -> list[str]:
        return []

    def begin(self, key: bytes) -> None:
        def done(failure: StorageFailure | None) -> None:
            (self.durable if failure is None else self.failed).append(key)

        self.store.begin_write([Write(FAMILY, key, b"value")], done)


async def nothing(clerk: Clerk) -> None:
    return


class Run:
    """One host with a clerk, and the cluster that it is."""

    def __init__(self, seed: int, work: Callable[[Clerk], Coroutine[Any, Any, None]]) -> None:
        self.loop = VirtualLoop()
        self.clerks: list[Clerk] = []
        self.work = work
        self.history = History()
        self.fabric = SimulatedFabric(self.loop, random.Random(seed), self.history)
        self.listeners = ClientListeners(self.fabric)
        self.leaving: dict[str, None] = {}
        self.host = SimulatedHost(
            "clerk-1", seed=str(seed), fabric=self.fabric, listeners=self.listeners, build=self._build
        )
        self.hosts = {self.host.name: self.host}
        self.conditions = self.host.disk_conditions

    def _build(self, environment: Environment, network: Network, host: SimulatedHost) -> Node:
        self.clerks.append(Clerk(environment, self.work))
        return self.clerks[-1]

    def all_host_names(self) -> list[str]:
        return list(self.hosts)

    def play(self, main: Coroutine[Any, Any, None]) -> None:
        self.loop.run(main)
        assert self.loop.problems == [] and self.host.fabric.bugs == []

    async def found_after_restart(self) -> list[bytes]:
        self.work = nothing
        await self.host.start()
        return self.clerks[-1].found


KEYS = [b"%03d" % number for number in range(6)]


async def begin_all(clerk: Clerk) -> None:
    for key in KEYS:
        clerk.begin(key)


async def write_each(clerk: Clerk) -> None:
    """Several writes in one step, and a step between two of those."""
    for first, second in zip(KEYS[::2], KEYS[1::2], strict=True):
        for key in (first, second):
            clerk.store.write([Write(FAMILY, key, b"value"), Write(FAMILY, key + b"+", b"value")])
            clerk.durable.append(key)
        await asyncio.sleep(0)


def test_a_power_cut_leaves_some_of_the_begun_writes_from_the_first() -> None:
    lengths = set()
    for seed in range(40):
        run = Run(seed, begin_all)

        async def main(run: Run = run) -> None:
            run.host.disk.holds_syncs = True
            await run.host.start()
            await asyncio.sleep(1)
            assert run.clerks[0].durable == []
            run.host.crash()
            run.host.disk.holds_syncs = False
            found = await run.found_after_restart()
            assert found == KEYS[: len(found)]
            lengths.add(len(found))

        run.play(main())
    assert {0, len(KEYS)} < lengths


def test_a_write_that_was_answered_as_failed_may_be_found_after_a_crash_and_not_after_mending() -> None:
    lengths = set()
    for seed in range(40):
        run = Run(seed, begin_all)

        async def main(run: Run = run, seed: int = seed) -> None:
            run.host.disk.fail_next_syncs(1)
            await run.host.start()
            await asyncio.sleep(1)
            assert run.clerks[0].failed == KEYS
            assert list(run.clerks[0].store.scan(FAMILY, b"")) == []
            if seed % 2:
                store = run.clerks[0].store
                assert store.mend()  # type: ignore[attr-defined]
            run.host.crash()
            found = await run.found_after_restart()
            assert found == KEYS[: len(found)]
            assert not (seed % 2 and found)
            lengths.add(len(found))

        run.play(main())
    assert {0, len(KEYS)} < lengths


def test_a_host_dies_between_any_two_writes_and_the_rest_of_its_step_does_not_run() -> None:
    seen = set()
    for seed in range(8):
        for number in range(1, len(KEYS) + 1):
            run = Run(seed, write_each)

            async def main(run: Run = run, number: int = number) -> None:
                run.conditions.die_at_write(number)
                await run.host.start()
                await asyncio.sleep(1)
                assert not run.host.running and run.conditions.death_count == 1
                durable = run.clerks[0].durable
                assert durable == KEYS[: number - 1]
                rows = await run.found_after_restart()
                whole = [row for row in rows if row in KEYS]
                assert rows == sorted([*whole, *[key + b"+" for key in whole]]), "each write is there as a whole"
                assert whole in (KEYS[: number - 1], KEYS[:number])
                seen.add((number, len(whole) == number))

            run.play(main())
    assert len(seen) == 2 * len(KEYS)


def test_a_host_dies_before_any_step() -> None:
    async def steps(clerk: Clerk) -> None:
        for key in KEYS:
            await asyncio.sleep(0)
            clerk.durable.append(key)

    counts = []
    for number in range(1, 9):
        run = Run(1, steps)

        async def main(run: Run = run, number: int = number) -> None:
            run.host.start()
            run.conditions.die_at_step(number)
            await asyncio.sleep(1)
            assert not run.host.running
            counts.append(len(run.clerks[0].durable) if run.clerks else -1)

        run.play(main())
    assert counts == sorted(counts) and {0, 1, 2, 3} <= set(counts)


def test_no_sync_of_a_hung_disk_ends_and_a_process_that_waits_for_it_stands_still() -> None:
    async def begin_and_wait(clerk: Clerk) -> None:
        clerk.begin(KEYS[0])
        await asyncio.sleep(1)
        clerk.failed.append(b"ran on")
        clerk.store.write([Write(FAMILY, KEYS[1], b"value")])
        await asyncio.sleep(1)
        clerk.failed.append(b"ran on behind the write")

    run = Run(1, begin_and_wait)

    async def main() -> None:
        run.conditions.hang()
        await run.host.start()
        await asyncio.sleep(100)
        assert (run.clerks[0].durable, run.clerks[0].failed) == ([], [b"ran on"])
        run.conditions.go_on()
        await asyncio.sleep(3)
        assert (run.clerks[0].durable, run.clerks[0].failed) == ([KEYS[0]], [b"ran on", b"ran on behind the write"])

    run.play(main())


@pytest.mark.parametrize("name", ["power-cut", "hung-disk"])
def test_begun_writes_become_durable_when_a_fault_that_holds_syncs_is_called_off(name: str) -> None:
    """All faults may end while a power cut waits for its moment; a leader begins no write before the last one ended."""
    run = Run(1, begin_all)

    async def main() -> None:
        injector = FaultInjector(run, random.Random(1), DISK_KINDS)
        injector.start([Fault(0.0, name, (run.host.name,), duration=100.0, strength=100.0)])
        await asyncio.sleep(1)
        await run.host.start()
        await asyncio.sleep(1)
        assert run.clerks[0].durable == []
        await injector.heal()
        await asyncio.sleep(1)
        assert run.clerks[0].durable == KEYS and len(run.clerks) == 1

    run.play(main())


def test_a_slow_disk_delays_each_sync_and_the_process_that_waits_for_one() -> None:
    times: list[float] = []

    async def wait(clerk: Clerk) -> None:
        clerk.store.write([Write(FAMILY, KEYS[0], b"value")])
        await asyncio.sleep(0)
        times.append(asyncio.get_running_loop().time())

    run = Run(1, wait)

    async def main() -> None:
        run.conditions.slow_sync_s = 2.0
        await run.host.start()
        await asyncio.sleep(9)

    run.play(main())
    assert len(times) == 1 and 2.0 <= times[0] < 2.1


def test_a_full_disk_refuses_writes_and_ends_begun_ones() -> None:
    async def begin_and_write(clerk: Clerk) -> None:
        clerk.begin(KEYS[0])
        run.host.disk.is_full = True
        with pytest.raises(StorageFailure, match="No space left on device"):
            clerk.begin(KEYS[1])

    run = Run(1, begin_and_write)

    async def main() -> None:
        await run.host.start()
        await asyncio.sleep(1)
        assert run.clerks[0].durable == [KEYS[0]]
        assert not run.clerks[0].store.mend()  # type: ignore[attr-defined]
        run.host.disk.is_full = False
        assert run.clerks[0].store.mend()  # type: ignore[attr-defined]
        run.host.crash()
        assert await run.found_after_restart() in ([KEYS[0]], KEYS[:2])

    run.play(main())


def test_reads_fail_or_return_a_wrong_bit() -> None:
    run = Run(1, nothing)

    async def main() -> None:
        await run.host.start()
        store = run.clerks[0].store
        store.write([Write(FAMILY, key, b"value") for key in KEYS])
        run.conditions.failing_reads = 1.0
        with pytest.raises(StorageFailure, match="Input/output error"):
            store.get(FAMILY, KEYS[0])
        with pytest.raises(StorageFailure, match="Input/output error"):
            list(store.scan(FAMILY, b""))
        run.conditions.failing_reads, run.conditions.flipping_reads = 0.0, 1.0
        for _, value in store.scan(FAMILY, b""):
            wrong = int.from_bytes(value, "big") ^ int.from_bytes(b"value", "big")
            assert wrong.bit_count() == 1
        run.conditions.has_older_rows = True
        assert {value for _, value in store.scan(FAMILY, b"")} == {b"value"}, "none that no code could notice"
        store.write([Write(FAMILY, KEYS[0], sealed(KEYS[0], b"new"))])
        assert store.get(FAMILY, KEYS[0]) != sealed(KEYS[0], b"new"), "rows of the present version as before"
        run.conditions.flipping_reads = 0.0
        store.write([Write(FAMILY, KEYS[0], b"value")])
        assert {value for _, value in store.scan(FAMILY, b"")} == {b"value"}, "the disk itself has the right bits"

    run.play(main())


def test_a_crash_leaves_a_hole_before_later_bytes_that_were_not_synced() -> None:
    """Whole sectors or pages of the file have zeros then; one sector is written as a whole."""
    run = Run(1, nothing)

    async def main() -> None:
        conditions = run.conditions
        data, position = bytes(range(1, 256)) * 64, 3 * PAGE_BYTES + 100
        blocks = set()
        for _ in range(200):
            holes = conditions.hole_count
            left = conditions.bytes_kept(data, position)
            if conditions.hole_count == holes:
                assert left == data[: len(left)] or not any(left)
                continue
            assert len(left) == len(data) and left[-1] == data[-1]
            zeros = [position + index for index, byte in enumerate(left) if byte == 0]
            first, end = zeros[0], zeros[-1] + 1
            assert zeros == list(range(first, end)) and left.replace(b"\x00", b"") == bytes(
                byte for index, byte in enumerate(data, position) if not first <= index < end
            )
            assert end % SECTOR_BYTES == 0 and (first == position or first % SECTOR_BYTES == 0)
            blocks.add(PAGE_BYTES if end % PAGE_BYTES == 0 and first % PAGE_BYTES in (0, 100) else SECTOR_BYTES)
        assert blocks == {SECTOR_BYTES, PAGE_BYTES} and 40 < conditions.hole_count < 90
        holes = conditions.hole_count
        for _ in range(50):
            conditions.bytes_kept(b"x" * SECTOR_BYTES, 8 * SECTOR_BYTES)
        assert conditions.hole_count == holes, "bytes of one sector have no hole"

    run.play(main())


def test_a_misdirected_read_of_a_file_is_noticed_by_the_checksum_of_its_place() -> None:
    run = Run(1, nothing)

    async def main() -> None:
        await run.host.start()
        files = ValueFiles(run.host.disk.open_folder("clerk"), 1, file_bytes=1_000)
        places = {}
        for number in range(20):
            value = bytes([number + 1]) * 700
            (pointer,), _ = files.append(b"a", [(b"a%03d" % number, value)])
            places[pointer] = value
        run.conditions.misdirected_reads = 0.5
        noticed = 0
        for pointer, value in places.items():
            try:
                assert files.read(b"a", pointer) == value
            except DamagedValue:
                noticed += 1
        assert noticed == run.conditions.misdirected_count > 0
        assert run.host.incarnation is not None and run.host.incarnation.has_read_damage
        run.conditions.heal()
        assert {pointer: files.read(b"a", pointer) for pointer in places} == places, (
            "the disk itself has the right bytes"
        )

    run.play(main())


def test_a_leader_whose_reads_of_files_are_misdirected_breaks_no_rule() -> None:
    plan = draw_plan(5)
    plan = replace(plan, shape=replace(plan.shape, has_batch_files=True), fault_seconds=15.0, records=200)
    times = [Fault(2.0 + 3.0 * index, "misdirected-reads", ("leader-1",), 2.0, 0.5) for index in range(4)]
    run = SeedRun(plan, faults=times)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert run.injector.met["misdirected-reads"] > 0 and outcome.coverage[DAMAGED] > 0


@pytest.mark.parametrize("kind", [kind for kind in DISK_KINDS if kind.weight], ids=lambda kind: kind.name)
def test_a_kind_is_met_and_breaks_no_rule(kind: FaultKind) -> None:
    others = tuple(other.name for other in FAULT_KINDS if other.name != kind.name)
    met = 0
    for seed in range(1, 4):
        run = SeedRun(replace(draw_plan(seed), fault_count=8, fault_seconds=15.0, records=100, fault_kinds_off=others))
        outcome = run.run()
        assert not outcome.failed, outcome.report()
        met += run.injector.met[kind.name]
        if met:
            return
    raise AssertionError(f"{kind.name} was drawn, and never acted")


@pytest.mark.parametrize("name", ["flipped-bits"])
def test_a_node_that_does_not_compare_checksums_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checksums of rows a leader and a coordinator act on what the disk returned."""
    monkeypatch.setattr(checksummed_rows, "unsealed", lambda family, key, stored: stored[8:])
    others = tuple(other.name for other in FAULT_KINDS if other.name != name)
    for seed in range(1, 31):
        outcome = SeedRun(
            replace(draw_plan(seed), fault_count=8, fault_seconds=15.0, records=100, fault_kinds_off=others)
        ).run()
        if outcome.failed:
            return
    raise AssertionError("30 seeds did not notice it")
