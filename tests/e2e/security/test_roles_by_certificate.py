"""Roles with a certificate each, which allows the calls of that role only: all that clients do works, and no more."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from kshare.main import app
from support.clients.administration import read_from_earliest
from support.clients.delivery import Reader, new_topic, produce, set_group
from support.clusters.engines import settings_of_roles
from support.clusters.role_processes import RoleProcess, running
from support.environment.certificates import Authority

TIMEOUT_S = 30.0
URI = "kshare://role/"


@dataclass(frozen=True)
class Roles:
    """The running roles, and the folder of their certificates."""

    processes: dict[str, RoleProcess]
    folder: Path

    @property
    def bootstrap(self) -> str:
        return self.processes["gateway"].address

    def config(self, role: str) -> Path:
        return self.folder / f"{role}.properties"

    def log(self, role: str) -> str:
        return self.processes[role].log.read_text()


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    folder = tmp_path_factory.mktemp("roles")
    authority = Authority("roles")
    authority.write(folder / "ca.pem")
    names = ("coordinator", "share_coordinator", "leader", "gateway")
    processes: dict[str, RoleProcess] = {}
    with ExitStack() as stack:
        of_engine = stack.enter_context(settings_of_roles(folder / "upstream"))
        for role in (*names, "administrator"):
            store = authority.issue(role, uris=[URI + role]).write_combined(folder / f"{role}.pem")
            texts = {
                "kshare.rpc.ssl.keystore.location": store,
                "kshare.rpc.ssl.truststore.location": folder / "ca.pem",
                "kshare.rpc.ssl.roles.required": "true",
                "group.initial.rebalance.delay.ms": "0",
                **of_engine,
            }
            (folder / f"{role}.properties").write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
        for role in names:
            options = {"config": folder / f"{role}.properties"}
            if processes:
                options["coordinator_address"] = processes["coordinator"].address  # type: ignore[assignment]
            processes[role] = stack.enter_context(running(role, folder / role, **options))  # type: ignore[arg-type]
        yield Roles(processes, folder)


def test_clients_find_nothing_missing(roles: Roles) -> None:
    topic, group = new_topic(roles.bootstrap), f"g-{uuid.uuid4().hex[:8]}"
    produce(roles.bootstrap, topic, ["one", "two", "three"])
    set_group(roles.bootstrap, group, auto_offset_reset="earliest")
    reader = Reader(roles.bootstrap, group, topic)
    reader.accept(3)
    reader.close()
    producer = Producer({"bootstrap.servers": roles.bootstrap, "transactional.id": group})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"four")
    producer.commit_transaction(TIMEOUT_S)
    read_from_earliest(roles.bootstrap, group)
    for role in roles.processes:
        assert "may be called by" not in roles.log(role), role


@pytest.mark.parametrize(("role", "is_allowed"), [("administrator", True), ("leader", False), ("gateway", False)])
def test_placement_is_for_administrators(
    roles: Roles, role: str, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSHARE_CONFIG", str(roles.config(role)))
    found = CliRunner().invoke(app, ["state", "partitions", "--bootstrap", roles.bootstrap])
    assert (found.exit_code == 0) is is_allowed, found.output
    if not is_allowed:
        assert "may be called by administrator" in str(found.exception)
