"""Settings that the process refuses before it starts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kshare_rpc.in_process_network import InProcessNetwork
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process_settings import ProcessSettings, read_settings
from kshare_share_coordinator.process import build
from kshare_share_coordinator.settings import SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT


class StillClock:
    def now_ms(self) -> int:
        return 0


def settings(path: Path, properties: str = "", coordinator_address: str | None = "127.0.0.1:1") -> ProcessSettings:
    config = path / "kshare.properties"
    config.write_text(properties)
    arguments = ["--node-id", "1", "--data-dir", str(path), "--config", str(config)]
    if coordinator_address is not None:
        arguments += ["--coordinator-address", coordinator_address]
    return read_settings(ProcessSettings, arguments, program="test")


def attempt(given: ProcessSettings) -> None:
    environment = Environment(clock=StillClock(), random=random.Random(1), open_store=MemoryDisk().open_store)
    build(environment, InProcessNetwork(), given)


def test_good_settings_make_a_node(tmp_path: Path) -> None:
    attempt(settings(tmp_path, f"{SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT}=100"))


def test_an_unknown_config_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no\\.such\\.config"):
        attempt(settings(tmp_path, "no.such.config=1"))


def test_a_bad_value_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="snapshot\\.update\\.records\\.per\\.snapshot"):
        attempt(settings(tmp_path, f"{SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT}=-1"))


def test_the_coordinators_address_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--coordinator-address is missing"):
        attempt(settings(tmp_path, coordinator_address=None))
