"""The metadata in etcd: what a full link delivers late, the fence that refuses it, and the rule that notices it."""

from __future__ import annotations

import asyncio

import pytest

from kshare_coordinator.metadata.etcd.port import Compare, EtcdUnavailable, Put, Target
from support.metadata.faulty_etcd import FaultyEtcd
from support.metadata.memory_etcd import MemoryEtcd
from support.simulation.loop import VirtualLoop
from support.simulation.rules.etcd_metadata import journals_are_written_once

OWNER, ENTRY = b"/kshare/owners/3", b"/kshare/rows/3/journal/00000000000000000007"


def run_late_write(*, is_fenced: bool) -> MemoryEtcd:
    """A first owner's write meets a full link, a second one takes over and writes, and then the link has room."""
    loop, etcd = VirtualLoop(time_limit=100.0), MemoryEtcd()

    async def main() -> None:
        first, second = FaultyEtcd(etcd.client()), FaultyEtcd(etcd.client())
        lease = await first.grant(5_000)
        owned = await first.transact([], [Put(OWNER, b"1", lease.id)])
        fence = [Compare(OWNER, Target.CREATE_REVISION, owned.revision)] if is_fenced else []
        first.full = True
        with pytest.raises(EtcdUnavailable, match="full"):
            await first.transact(fence, [Put(ENTRY, b"late")])
        await asyncio.sleep(5)
        assert (await second.range(OWNER)).pairs == [], "the lease has run out"
        await second.transact([Compare(OWNER, Target.CREATE_REVISION, 0)], [Put(OWNER, b"2")])
        await second.transact([], [Put(ENTRY, b"durable")])
        first.full = False
        await first.wait_for_late()
        found = (await second.range(ENTRY)).pairs[0].value
        assert found == (b"durable" if is_fenced else b"late")

    loop.run(main())
    assert loop.problems == []
    return etcd


def test_a_late_write_of_a_former_owner_is_refused_by_its_fence() -> None:
    assert list(journals_are_written_once(run_late_write(is_fenced=True).replaced)) == []


def test_a_late_write_without_a_fence_is_noticed() -> None:
    (violation,) = journals_are_written_once(run_late_write(is_fenced=False).replaced)
    assert violation.rule == "an entry of the metadata was overwritten"
    assert "rows/3/journal" in violation.text


def test_what_may_have_another_value_breaks_no_rule() -> None:
    assert list(journals_are_written_once([(OWNER, 4), (b"/kshare/rows/3/head", 5)])) == []
