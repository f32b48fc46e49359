"""A batch that arrives again after its transaction's end, as from a connection that was cut long ago.

It is in the log, so the answer is where. The coordinator is not asked, and the sequence is not taken for one that the
producer's next transaction must begin with.
"""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.leader_logs import KEY, open_logs
from support.leader.log.transactional_logs import ScriptedCoordinator, end_of, transactional_batch, verifier_of
from support.simulation.loop import VirtualLoop


@pytest.mark.parametrize("committed", [True, False])
def test_a_late_copy_does_not_stop_the_next_transaction(committed: bool) -> None:
    async def test() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"))
        coordinator = ScriptedCoordinator()
        verifier = verifier_of(logs, coordinator)

        async def send(sequence: int) -> int:
            batch = transactional_batch(1, sequence)
            return (await verifier.append(KEY, batch, transactional_id="pay", adds_partition=False)).base_offset

        assert [await send(0), await send(1)] == [0, 1]
        await logs.end_transaction(KEY, end_of(1, committed=committed))
        coordinator.default = ErrorCode.INVALID_TXN_STATE
        assert await send(1) == 1
        assert len(coordinator.calls) == 1
        coordinator.default = ErrorCode.NONE
        assert await send(2) == 3
        assert len(coordinator.calls) == 2

    VirtualLoop().run(test())
