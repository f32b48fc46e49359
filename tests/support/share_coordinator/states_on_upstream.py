"""Share coordinators' states in an existing cluster, without network and coordinator: a test is the catalog."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import cast

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_rpc.catalog import CatalogView
from kshare_runtime.memory_store import MemoryStore
from kshare_runtime.ports import Environment
from kshare_share_coordinator.machine.operations import Operation, Result
from kshare_share_coordinator.metrics import StateMetrics
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_share_coordinator.state_log.upstream import UpstreamStates
from kshare_upstream.fenced_log.owner import FencedLog
from kshare_upstream.port import OpenedUpstream, Upstream
from kshare_upstream.topics import create_topic, durable_configs

CLUSTER_ID = "cluster-one"


class LoopClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


class TestsCatalog:
    """What a node knows of the catalog, as a test sets it; the lease never ends."""

    lease_ms = 10_000

    def __init__(self, state_partitions: int) -> None:
        self.node_epoch = 0
        self.view = CatalogView(version=1, cluster_id=CLUSTER_ID, state_partition_count=state_partitions)
        self.registered_again: Callable[[], None] = lambda: None

    @property
    def lease_renewed_at(self) -> float:
        return asyncio.get_running_loop().time()

    def register_again(self) -> None:
        self.registered_again()


def settings(node_id: int = 1, configs: Mapping[str, str] | None = None) -> ShareCoordinatorSettings:
    """Those of the kafka engine, and `configs`."""
    texts = {"kshare.engine": "kafka", "kshare.upstream.bootstrap.servers": "memory:9092", **(configs or {})}
    return ShareCoordinatorSettings(
        node_id=node_id,
        listen="127.0.0.1:0",
        coordinator_address="coordinator:1",
        configs=Configs(PROCESS_CONFIGS, texts),
    )


def no_store(name: str) -> MemoryStore:
    raise AssertionError(f"the store {name} was opened, although states are in the existing cluster")


def new_states(
    upstream: Upstream,
    *,
    node_id: int = 1,
    state_partitions: int = 1,
    seed: int = 1,
    kind: type[FencedLog] = FencedLog,
    configs: Mapping[str, str] | None = None,
) -> tuple[UpstreamStates, TestsCatalog]:
    """A node's states, and its catalog."""
    catalog = TestsCatalog(state_partitions)
    states = UpstreamStates(
        upstream=cast(OpenedUpstream, upstream),
        environment=Environment(clock=LoopClock(), random=random.Random(f"{seed} {node_id}"), open_store=no_store),
        follower=catalog,
        settings=settings(node_id, configs),
        metrics=StateMetrics(),
        kind=kind,
    )
    assert states.ownership.identity_problem() is None
    return states, catalog


async def create_state_topic(upstream: Upstream, partitions: int = 1, topic: str = "__kshare_state") -> None:
    assert await create_topic(upstream, topic, partitions=partitions, replicas=1, configs=durable_configs(1))


async def served(states: UpstreamStates, state_partition: int = 0) -> None:
    """Returns when the state partition is served."""
    while states.refusal(state_partition) is not None:
        await asyncio.sleep(0.01)


async def run(states: UpstreamStates, operation: Operation) -> Result:
    """The result of an operation, a refusal included; StorageFailure, KafkaError."""
    return states.key_refusal(operation.key) or await states.submit(operation)
