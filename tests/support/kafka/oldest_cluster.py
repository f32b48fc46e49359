"""An Apache Kafka 2.8.2 with ZooKeeper, the oldest cluster that the README promises share groups for.

with OldestCluster(folder) as cluster:
    cluster.bootstrap  # "127.0.0.1:PORT"
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from support.environment.free_ports import free_port
from support.kafka.apache_kafka import wait_for_port
from support.kafka.existing_cluster import ExistingCluster
from support.kafka.java import OLDEST, kafka_classpath, require_java

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


class OldestCluster(ExistingCluster):
    """One broker and one ZooKeeper, which end with the block."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, brokers=0)
        self._folder = folder
        self._ports = (free_port(), free_port())
        self.bootstrap = f"127.0.0.1:{self._ports[1]}"

    def __enter__(self) -> OldestCluster:
        self._folder.mkdir(parents=True)
        zookeeper, broker = self._ports
        with ExitStack() as started:
            self._start(
                started,
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                zookeeper,
                {
                    "dataDir": str(self._folder / "zookeeper"),
                    "clientPort": str(zookeeper),
                    "clientPortAddress": "127.0.0.1",
                    "admin.enableServer": "false",
                },
            )
            self._start(
                started,
                "kafka.Kafka",
                broker,
                {
                    "broker.id": "1",
                    "listeners": f"PLAINTEXT://{self.bootstrap}",
                    "log.dirs": str(self._folder / "records"),
                    "zookeeper.connect": f"127.0.0.1:{zookeeper}",
                    "offsets.topic.replication.factor": "1",
                    "transaction.state.log.replication.factor": "1",
                    "transaction.state.log.min.isr": "1",
                    "group.initial.rebalance.delay.ms": "0",
                },
            )
            self._started = started.pop_all()
        return self

    def _start(self, started: ExitStack, main_class: str, port: int, properties: dict[str, str]) -> None:
        file = self._folder / f"{main_class}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        log = file.with_suffix(".log")
        command = [require_java(), *QUICK, "-Xmx384m", "-cp", kafka_classpath(OLDEST), main_class, str(file)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        started.callback(process.wait)
        started.callback(process.kill)
        wait_for_port(port, process, log)
