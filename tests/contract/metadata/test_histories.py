"""Histories of coordinators under faults, drawn by Hypothesis, on the model of etcd in virtual time.

Whatever is lost, delayed, cut off or stands still: no two own a partition at once, what was confirmed stays, what was
refused never appears, and what nobody knows is there completely or not at all, in its place.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kshare_coordinator.metadata.etcd.port import EtcdCompacted
from kshare_coordinator.metadata.port import CATALOG, OwnershipLost
from support.metadata.cluster import LEASE_MS, Cluster, Coordinator, write
from support.metadata.etcd_backends import Backend, play_in_virtual_time, until

PARTITIONS = 4
NODES = (1, 2, 3)

FAULTS = st.one_of(
    st.tuples(st.just("lose answers"), st.sampled_from(NODES), st.integers(1, 3)),
    st.tuples(st.just("lose requests"), st.sampled_from(NODES), st.integers(1, 3)),
    st.tuples(st.just("apply late"), st.sampled_from(NODES), st.sampled_from([50, 300, 2_500, 6_000])),
    st.tuples(st.just("slow"), st.sampled_from(NODES), st.sampled_from([0, 20, 200])),
    st.tuples(st.just("cut"), st.sampled_from(NODES), st.sampled_from([100, 1_000, 3_500])),
    st.tuples(st.just("stop"), st.sampled_from(NODES), st.sampled_from([0, 500])),
    st.tuples(st.just("etcd pauses"), st.just(0), st.sampled_from([200, 1_500, 4_000])),
    st.tuples(st.just("etcd restarts"), st.just(0), st.just(0)),
    st.tuples(st.just("compact"), st.just(0), st.just(0)),
)
Fault = tuple[str, int, int]


@dataclass(slots=True)
class Truth:
    """For each partition the numbers that appends put there: `confirmed`, and those that nobody knows about."""

    confirmed: dict[int, int] = field(default_factory=dict)
    unknown: dict[int, list[int]] = field(default_factory=dict)
    appends: int = 0
    violations: list[str] = field(default_factory=list)


class History:
    """Runs writers and faults; see the module's text."""

    def __init__(self, backend: Backend, cluster: Cluster) -> None:
        self._backend = backend
        self._cluster = cluster
        self.truth = Truth()
        self.is_over = False
        self._number = 0

    async def write(self, node_id: int) -> None:
        """The writer of one node: appends over all that the node owns, with a number that nobody else has."""
        truth = self.truth
        while not self.is_over:
            await asyncio.sleep(0.02)
            one = next((one for one in self._cluster.coordinators if one.node_id == node_id), None)
            mine = [] if one is None else [p for p in range(CATALOG, PARTITIONS) if one.store.owns(p)]
            if one is None or not mine:
                continue
            self._number += 1
            number = self._number
            for p in mine:
                self._check(one, p)
            waiting = one.store.append({p: [write("n", str(number)), write(f"at {number}", "x" * 30)] for p in mine})
            assert waiting is not None
            for p in mine:
                truth.unknown.setdefault(p, []).append(number)
            try:
                await waiting
            except OwnershipLost:
                continue
            truth.appends += 1
            for p in mine:
                self._took_effect(p, number)

    def _check(self, one: Coordinator, partition: int) -> None:
        """An owner knows what was confirmed last, or something of what nobody knows that came after it."""
        rows = one.rows(partition)
        known = int(rows.get("n", "0"))
        allowed = {self.truth.confirmed.get(partition, 0), *self.truth.unknown.get(partition, ())}
        if known not in allowed:
            self.truth.violations.append(f"{one.node_id} knows {known} of {partition}, allowed are {allowed}")
        if known and f"at {known}" not in rows:
            self.truth.violations.append(f"{one.node_id} has a part of {known} only")
        self._took_effect(partition, known)

    def _took_effect(self, partition: int, number: int) -> None:
        """Numbers grow with time, so none that was given out before may appear after it."""
        confirmed = self.truth.confirmed.get(partition, 0)
        if number < confirmed:
            self.truth.violations.append(f"{number} of {partition} came after {confirmed}")
        self.truth.confirmed[partition] = number
        unknown = self.truth.unknown.get(partition, [])
        self.truth.unknown[partition] = [one for one in unknown if one > number]

    async def happen(self, fault: Fault) -> None:
        kind, node_id, number = fault
        one = next((one for one in self._cluster.coordinators if one.node_id == node_id), None)
        match kind:
            case "etcd pauses":
                self._backend.pause()
                await asyncio.sleep(number / 1000)
                self._backend.resume()
            case "etcd restarts":
                self._backend.restart()
            case "compact":
                with suppress(EtcdCompacted):  # nothing was written since the last time
                    await self._cluster.raw.compact((await self._cluster.raw.range(b"x")).revision)
            case _ if one is not None:
                await self._happen_to(one, kind, number)

    async def _happen_to(self, one: Coordinator, kind: str, number: int) -> None:
        match kind:
            case "lose answers":
                one.etcd.lose_answers(number)
            case "lose requests":
                one.etcd.lose_requests(number)
            case "apply late":
                one.etcd.apply_late(1, number)
            case "slow":
                one.etcd.delay_ms = lambda: number
            case "cut":
                one.etcd.unavailable = True
                await asyncio.sleep(number / 1000)
                one.etcd.unavailable = False
            case "stop":
                await self._cluster.stop(one)
                await asyncio.sleep(number / 1000)
                await self._cluster.start(one.node_id, journal_limit=5, value_bytes_limit=120)


PIECES_READ_BEFORE_THEIR_ENTRY: list[tuple[Fault, int]] = [
    (("cut", 1, 3500), 744),
    (("stop", 3, 500), 45),
    (("etcd restarts", 0, 0), 476),
    (("slow", 1, 20), 164),
    (("etcd pauses", 0, 1500), 465),
    (("etcd pauses", 0, 200), 177),
    (("etcd restarts", 0, 0), 0),
    (("etcd restarts", 0, 0), 660),
    (("cut", 2, 1000), 130),
    (("etcd pauses", 0, 200), 87),
    (("lose requests", 1, 2), 411),
    (("etcd pauses", 0, 4000), 7),
]
"""A coordinator loaded the catalog between an append's pieces and its entry, owned it later, and removed the pieces."""


@settings(max_examples=20, deadline=None)
@example(faults=PIECES_READ_BEFORE_THEIR_ENTRY)
@given(faults=st.lists(st.tuples(FAULTS, st.integers(0, 800)), min_size=1, max_size=12))
def test_no_confirmed_write_is_lost_and_no_partition_has_two_owners(faults: list[tuple[Fault, int]]) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=PARTITIONS) as cluster:
            for node_id in NODES:
                await cluster.start(node_id, journal_limit=5, value_bytes_limit=120)
            await cluster.balanced()
            history = History(backend, cluster)
            writers = [asyncio.ensure_future(history.write(node_id)) for node_id in NODES]
            await asyncio.sleep(0.3)
            for fault, wait_ms in faults:
                await history.happen(fault)
                await asyncio.sleep(wait_ms / 1000)
            for one in cluster.coordinators:
                one.etcd.delay_ms = lambda: 0
            await cluster.balanced(within_s=4 * LEASE_MS / 1000 + 10)
            before = history.truth.appends
            await until(lambda: history.truth.appends > before + 10)
            history.is_over = True
            await asyncio.gather(*writers)
            assert history.truth.violations == []
            active = cluster.owner(CATALOG)
            assert active is not None
            for one in cluster.coordinators:
                await until(lambda one=one: one is active or one.catalog == active.rows(CATALOG))  # type: ignore[misc]

    play_in_virtual_time(scene)
