"""`kshare up --console`: to which listener the console connects, what it is told, and what it cannot know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kshare.addresses import Address, free_port
from kshare.failure import CommandFailed
from kshare.up.command import UpOptions, _with_metrics
from kshare.up.data_directory import DataDirectory
from kshare.up.plan import ClusterPlan, PlannedNode
from kshare.up.web_console import ConsoleOptions, console_command, console_listener, console_options
from kshare_core.configs import Configs, process_configs
from kshare_gateway.connections.listeners import GatewayListener

LISTEN = Address("127.0.0.1", 8080)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    found = DataDirectory(tmp_path / "data")
    yield found
    found.close()


def listener(name: str, protocol: str, port: int, host: str = "127.0.0.1") -> GatewayListener:
    return GatewayListener(
        name=name, security_protocol=protocol, host=host, port=port, advertised_host=host, advertised_port=port
    )


PLAIN, SASL = listener("PLAIN", "PLAINTEXT", 9092), listener("USERS", "SASL_PLAINTEXT", 9093)
TLS, SASL_TLS = listener("TLS", "SSL", 9094), listener("SAFE", "SASL_SSL", 9095)


def plan(*listeners: GatewayListener) -> ClusterPlan:
    nodes = [PlannedNode("coordinator"), PlannedNode("gateway")]
    return ClusterPlan(
        client_address=Address("0.0.0.0", 9092),
        advertised=Address("host", 9092),
        nodes=nodes,
        addresses={"coordinator": Address("127.0.0.1", 9190)},
        config_file=None,
        listeners=listeners,
    )


def configs(**texts: str) -> Configs:
    return process_configs({name.replace("_", "."): text for name, text in texts.items()})[0]


def flags(command: list[str]) -> dict[str, str]:
    return dict(zip(command[3::2], command[4::2], strict=True))


def up_options(directory: DataDirectory, metrics_listen: str, console: ConsoleOptions | None) -> UpOptions:
    return UpOptions(
        data_dir=directory.path,
        listen=None,
        advertised=None,
        ready_file=None,
        processes="auto",
        config_file=None,
        metrics_listen=metrics_listen,
        web_console=console,
    )


def test_without_listeners_it_connects_to_the_one_address(directory: DataDirectory) -> None:
    found = flags(console_command(ConsoleOptions(listen=LISTEN), directory, plan(), configs()))
    assert found["--bootstrap-servers"] == "127.0.0.1:9092"
    assert found["--coordinator-address"] == "127.0.0.1:9190"
    assert (found["--console-listen"], found["--console-admin"]) == ("127.0.0.1:8080", "false")
    assert "--client-config" not in found


@pytest.mark.parametrize(("one_process", "names"), [(True, ["all roles"]), (False, ["coordinator", "gateway"])])
def test_its_metrics_have_the_port_after_those_of_the_roles(
    directory: DataDirectory, one_process: bool, names: list[str]
) -> None:
    options = ConsoleOptions(listen=LISTEN)
    found = _with_metrics(up_options(directory, "127.0.0.1:0", options), plan(), one_process=one_process)
    assert list(found.metrics) == [*names, "console"]
    metrics_listen = flags(console_command(options, directory, found, configs()))["--metrics-listen"]
    assert metrics_listen == str(found.metrics["console"])
    alone = _with_metrics(up_options(directory, "127.0.0.1:0", None), plan(), one_process=one_process)
    assert list(alone.metrics) == names


def test_its_own_port_is_not_one_for_metrics(directory: DataDirectory) -> None:
    address = Address("127.0.0.1", free_port("127.0.0.1"))
    options = up_options(directory, str(address), ConsoleOptions(listen=address))
    with pytest.raises(CommandFailed, match="another listener has this port"):
        _with_metrics(options, plan(), one_process=True)


@pytest.mark.parametrize(
    ("listeners", "chosen"),
    [
        ((PLAIN,), PLAIN),
        ((PLAIN, SASL), SASL),
        ((TLS, PLAIN), PLAIN),
        ((SASL_TLS, SASL), SASL),
        ((PLAIN, SASL_TLS), SASL_TLS),
    ],
)
def test_users_sign_in_where_a_listener_asks_for_it(
    listeners: tuple[GatewayListener, ...], chosen: GatewayListener
) -> None:
    assert console_listener(plan(*listeners)) is chosen


def test_protocol_and_mechanism_of_a_sasl_listener_are_written(directory: DataDirectory) -> None:
    given = configs(sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256")
    options = ConsoleOptions(listen=LISTEN, is_admin=True)
    found = flags(console_command(options, directory, plan(SASL), given))
    assert (found["--bootstrap-servers"], found["--console-admin"]) == ("127.0.0.1:9093", "true")
    written = Path(found["--client-config"]).read_text()
    assert written == "security.protocol=sasl_plaintext\nsasl.mechanism=SCRAM-SHA-256\n"


def test_what_only_the_user_knows_is_asked_for(directory: DataDirectory, tmp_path: Path) -> None:
    options = ConsoleOptions(listen=LISTEN)
    for impossible in (plan(TLS), plan(SASL_TLS), replace(plan(), all_authenticate=True)):
        with pytest.raises(CommandFailed, match="give --console-client-config FILE"):
            console_command(options, directory, impossible, configs())
    own = replace(options, client_config=tmp_path / "own.properties")
    assert flags(console_command(own, directory, plan(TLS), configs()))["--client-config"] == str(own.client_config)
    with pytest.raises(CommandFailed, match="enables OAUTHBEARER"):
        console_command(options, directory, plan(SASL), configs(sasl_enabled_mechanisms="OAUTHBEARER"))


def test_options_need_the_console() -> None:
    assert console_options(None, False, None) is None
    found = console_options("127.0.0.1:8080", True, None)
    assert found is not None and (found.listen, found.is_admin) == (LISTEN, True)
    with pytest.raises(CommandFailed, match="need --console HOST:PORT"):
        console_options(None, True, None)
    with pytest.raises(CommandFailed, match="--console"):
        console_options("nonsense", False, None)
