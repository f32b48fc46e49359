"""An Apache Kafka 3.9.1 without share groups, of one or several brokers: what the kafka engine is attached to.

with ExistingCluster(folder, brokers=3) as cluster:
    cluster.bootstrap         # "127.0.0.1:PORT,127.0.0.1:PORT,…"
    cluster.brokers[2]        # an ApacheKafka, to be stopped and launched again

The first broker is the controller, too.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from support.environment.free_ports import free_port
from support.kafka.apache_kafka import HEAP, ApacheKafka, new_cluster_id
from support.kafka.java import WITHOUT_SHARE_GROUPS

QUICK_HEAP = "384m"


class ExistingCluster:
    """A context manager; `settings` are added to those of every broker.

    With `as_shipped` the brokers run as Kafka's scripts start them, and can be measured; else they start sooner.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        settings: dict[str, str] | None = None,
        release: str = WITHOUT_SHARE_GROUPS,
        as_shipped: bool = False,
    ) -> None:
        controller_port, cluster_id = free_port(), new_cluster_id()
        self.brokers = [
            ApacheKafka(
                folder / str(node_id),
                _own_settings(node_id, port, controller_port) | (settings or {}),
                port=port,
                release=release,
                cluster_id=cluster_id,
                heap=HEAP if as_shipped else QUICK_HEAP,
                quick=not as_shipped,
            )
            for node_id, port in enumerate([free_port() for _ in range(brokers)], 1)
        ]
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        self._started = ExitStack()

    def __enter__(self) -> ExistingCluster:
        with ExitStack() as starting:
            for broker in self.brokers:
                starting.enter_context(broker)
            self._started = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()


def _own_settings(node_id: int, port: int, controller_port: int) -> dict[str, str]:
    is_controller = node_id == 1
    controller = f",CONTROLLER://127.0.0.1:{controller_port}" if is_controller else ""
    return {
        "process.roles": "broker,controller" if is_controller else "broker",
        "node.id": str(node_id),
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}{controller}",
    }
