"""The start of a role is mostly imports, so it loads no library that few configurations need."""

from __future__ import annotations

import subprocess
import sys

import pytest

RARELY_NEEDED = (
    "cryptography",
    "scramp",
    "jwt",
    "prometheus_client",
    "rich",
    "pygments",
    "opentelemetry.sdk",
    "pydantic",
    "aiokafka",
)
"""For TLS, SCRAM, tokens, served metrics, the command line, traces, opened records; pydantic is needed by none."""


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules, sep='\\n')"
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(printed.stdout.split())


@pytest.mark.parametrize("role", ["coordinator", "share_coordinator", "leader", "gateway"])
def test_a_role_loads_no_library_that_is_rarely_needed(role: str) -> None:
    loaded = loaded_by(f"import kshare_{role}.__main__, kshare_servicekit.logs")
    assert "structlog" in loaded
    assert not loaded.intersection(RARELY_NEEDED)


@pytest.mark.parametrize(
    ("engine", "other"),
    [
        ("kshare_leader.engine.kafka", "kshare_leader.engine.embedded"),
        ("kshare_share_coordinator.state_log.upstream", "kshare_share_coordinator.state_log.embedded"),
    ],
)
def test_a_role_loads_one_engine(engine: str, other: str) -> None:
    loaded = loaded_by(f"import {engine.partition('.')[0]}.__main__, {engine}")
    assert engine in loaded
    assert other not in loaded


def test_a_gateway_loads_no_store() -> None:
    assert "rocksdict" not in loaded_by("import kshare_gateway.__main__, kshare_gateway.node")


def test_a_coordinator_loads_one_metadata_store() -> None:
    loaded = loaded_by("import kshare_coordinator.__main__, kshare_coordinator.metadata.rocksdb_store")
    assert "kshare_coordinator.metadata.etcd.grpc_etcd" not in loaded
    assert "kshare_coordinator.metadata.upstream.store" not in loaded


def test_rich_can_be_imported_after_the_log() -> None:
    """The command line prints with it."""
    assert "rich.console" in loaded_by("import kshare_servicekit.logs; import rich.console")
