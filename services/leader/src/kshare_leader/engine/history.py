"""The delivery history of a node, which is the same on both engines but for its target."""

from __future__ import annotations

from kshare_leader.engine.port import EngineSurroundings
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.history.publisher import HistoryPublisher
from kshare_leader.history.target import HistoryTarget

ENABLE = "kshare.delivery.history.enable"


class NodeHistory:
    """The events of a node's share-partitions, and their publisher."""

    def __init__(self, node: EngineSurroundings, target: HistoryTarget) -> None:
        follower, environment = node.follower, node.environment
        self._target = target
        self._publisher = HistoryPublisher(
            target=target,
            buffer_bytes=node.configs.integer("kshare.delivery.history.buffer.bytes"),
            clock=environment.clock,
            random=environment.random,
            report=node.report,
            counts=node.metrics.history,
        )
        self.events = DeliveryHistory(
            buffer=self._publisher.buffer,
            view=lambda: follower.view,
            node_id=node.settings.node_id,
            node_epoch=lambda: follower.node_epoch,
            wall_now_ms=environment.clock.now_ms,
        )

    async def stop(self) -> None:
        """Tries for a second to send what is buffered."""
        await self._publisher.stop()
        await self._target.close()
