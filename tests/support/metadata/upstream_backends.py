"""The existing clusters that tests of metadata run on: an Apache Kafka 3.9.1 in real time, one in memory in virtual.

A scene is a coroutine function that takes an UpstreamBackend. All scenes of a process share one Kafka, each with a
prefix of topics of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

from kshare_coordinator.metadata.upstream.topic import log_partition
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.own_topics import metadata_topic
from kshare_upstream.port import Upstream, UpstreamPartitionName
from support.environment.machine_stalls import MachineStalls
from support.kafka.existing_cluster import ExistingCluster
from support.metadata.etcd_backends import SCENE_LIMIT_S, machine_stalls
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream


class UpstreamBackend:
    """Clients of one cluster, and a prefix for topics. `memory` is the cluster, if it is in memory."""

    def __init__(self, client: Callable[[], Upstream], memory: MemoryUpstream | None) -> None:
        self.client = client
        self.memory = memory
        self.is_paused = False
        """Whether the cluster stands still."""
        self.topic_prefix = f"t{uuid.uuid4().hex[:12]}-" if memory is None else "__kshare_"

    @property
    def log(self) -> UpstreamPartitionName:
        """The log of the metadata."""
        return log_partition(metadata_topic(self.topic_prefix).name)


UpstreamScene = Callable[[UpstreamBackend], Awaitable[None]]
UpstreamPlay = Callable[[UpstreamScene], None]


@lru_cache(maxsize=1)
def _kafka() -> str:
    """The bootstrap address of this process's Kafka, which ends with the process."""
    started = ExitStack()
    folder = Path(tempfile.mkdtemp(prefix="kshare-existing-"))
    started.callback(shutil.rmtree, folder, ignore_errors=True)
    cluster = started.enter_context(ExistingCluster(folder))
    atexit.register(started.close)
    return cluster.bootstrap


def backend_at(bootstrap: str) -> UpstreamBackend:
    """The cluster of one broker at this address."""
    host, _, port = bootstrap.rpartition(":")
    return UpstreamBackend(lambda: Cluster([BrokerAddress(host, int(port))], ClientSettings()), None)


def play_on_upstream(kind: str, scene: UpstreamScene) -> None:
    """Plays it on "kafka" or on "memory"."""
    if kind == "memory":
        memory = MemoryUpstream()

        async def in_memory() -> None:
            await scene(UpstreamBackend(lambda: memory, memory))

        loop = VirtualLoop(time_limit=SCENE_LIMIT_S * 10)
        loop.run(in_memory())
        assert loop.problems == [], loop.problems
        return
    bootstrap = _kafka()

    async def on_kafka() -> None:
        await asyncio.wait_for(scene(backend_at(bootstrap)), SCENE_LIMIT_S)

    with MachineStalls() as stalls, machine_stalls(stalls):
        asyncio.run(on_kafka())
