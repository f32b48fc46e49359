"""Flags and config file of a coordinator's process."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.process import build
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process_settings import ProcessSettings
from support.coordinator.cluster import LoopClock

ETCD = "kshare.metadata.store=etcd\nkshare.metadata.etcd.endpoints=127.0.0.1:1\n"


def built(tmp_path: Path, properties: str, **flags: str) -> CoordinatorNode:
    config = tmp_path / "coordinator.properties"
    config.write_text(properties)
    settings = ProcessSettings(node_id=1, data_dir=tmp_path, config=config, **flags)  # type: ignore[arg-type]
    environment = Environment(clock=LoopClock(), random=random.Random(1), open_store=MemoryDisk().open_store)

    async def main() -> CoordinatorNode:
        return build(environment, InProcessNetwork(), settings)

    return asyncio.run(main())


def test_one_with_rocksdb_needs_no_more_than_its_flags(tmp_path: Path) -> None:
    assert built(tmp_path, "", listen="0.0.0.0:9100").problems() == ["the coordinator is not started"]


@pytest.mark.parametrize(
    ("properties", "flags", "text"),
    [
        ("kshare.metadata.store=etcd\n", {}, "kshare.metadata.etcd.endpoints"),
        ("kshare.metadata.store=paper\n", {}, "kshare.metadata.store"),
        (ETCD + "kshare.metadata.etcd.prefix=\n", {}, "kshare.metadata.etcd.prefix"),
        (ETCD, {"listen": "0.0.0.0:9100"}, "--advertised-address"),
        (ETCD, {"listen": "[::]:9100"}, "--advertised-address"),
    ],
)
def test_what_is_missing_for_several_is_said_before_the_start(
    tmp_path: Path, properties: str, flags: dict[str, str], text: str
) -> None:
    with pytest.raises(SettingsError, match=text):
        built(tmp_path, properties, **flags)


@pytest.mark.parametrize(
    "flags", [{"listen": "127.0.0.1:0"}, {"listen": "0.0.0.0:9100", "advertised_address": "coordinator-1:9100"}]
)
def test_one_of_several_is_built_when_others_can_reach_it(tmp_path: Path, flags: dict[str, str]) -> None:
    assert built(tmp_path, ETCD, **flags).core is None
