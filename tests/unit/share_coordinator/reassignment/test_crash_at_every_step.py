"""A move whose sender, receiver or coordinator is killed at each of its messages still ends, and loses nothing."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.methods import COMPLETE_STATE_PARTITION_MOVE, TRANSFER_STATE_PARTITION
from kshare_rpc.network import Method
from kshare_share_coordinator.machine.operations import InitializeState
from support.share_coordinator.reassignment_history import NODES, STATE_PARTITIONS, TOPIC_ID, MovingStates
from support.simulation.cluster import COORDINATOR

RESTART_AFTER_S = 0.5
MOVE_MESSAGES = (TRANSFER_STATE_PARTITION, COMPLETE_STATE_PARTITION_MOVE)
SENDER, RECEIVER = NODES[0], NODES[1]


class OneMove(MovingStates):
    """Two share coordinators, no accidents but one: `victim` dies when message `step` of the moves passes."""

    def __init__(self, victim: str | None = None, step: int = -1) -> None:
        super().__init__(1)
        self.victim = victim
        self.step = step
        self.messages = 0
        self._dying: list[asyncio.Task[None]] = []

    async def _main(self) -> None:
        await asyncio.gather(self._host(COORDINATOR).start(), self._host(SENDER).start())
        for client in self.clients:
            await client.carry_out(InitializeState(client.key, 3, 40))
            for _ in range(6):
                await client.carry_out(client.draw())
        self.cluster.fabric.taps.append(self._count)
        self._host(RECEIVER).start()
        working = [self.loop.create_task(client.work(8)) for client in self.clients]
        await asyncio.gather(*working)
        await asyncio.gather(*self._dying)
        self._host(NODES[2]).start()
        await self._wait_until_settled()
        for client in self.clients:
            await client.check_at_the_end()
        self._check_rows()

    def _count(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Any, sent_at: float
    ) -> None:
        if method in MOVE_MESSAGES:
            if self.messages == self.step and self.victim is not None:
                self._dying.append(self.loop.create_task(self._die(self.victim), context=contextvars.Context()))
            self.messages += 1

    async def _die(self, victim: str) -> None:
        self._host(victim).crash()
        await asyncio.sleep(RESTART_AFTER_S)
        self._host(victim).start()


def test_an_undisturbed_move_takes_several_pieces() -> None:
    move = OneMove()
    counts = move.run()
    assert move.messages >= 20 and counts.moves_completed >= 2 and counts.unknown == 0
    places = {state_partition_of(client.key, STATE_PARTITIONS) for client in move.clients}
    assert len(places) > 1 and SharePartitionKey("a", TOPIC_ID, 0) in [client.key for client in move.clients]


@pytest.mark.parametrize("victim", [SENDER, RECEIVER, COORDINATOR])
def test_a_crash_at_every_step(victim: str) -> None:
    step = 0
    while True:
        move = OneMove(victim, step)
        move.run()
        if move.messages <= step:
            break
        assert move._dying, f"nobody died at step {step}"
        step += 1
        if step >= 40:
            break
    assert step >= 20
