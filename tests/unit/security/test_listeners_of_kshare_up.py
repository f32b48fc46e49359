"""`kshare up` and a gateway's process with Kafka's `listeners`: ports, flags, and what is refused before the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kshare.addresses import Address
from kshare.failure import CommandFailed
from kshare.up.command import UpOptions, run_up
from kshare.up.data_directory import DataDirectory
from kshare.up.plan import node_command, plan_cluster
from kshare_core.configs import process_configs
from kshare_gateway.connections.listeners import configured_listeners
from kshare_gateway.process import build
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process_settings import GatewayProcessSettings, read_settings
from support.environment.certificates import Authority
from support.gateway.harness import environment

ANYWHERE = Address("127.0.0.1", 0)


def test_ports_are_chosen_and_kept(tmp_path: Path) -> None:
    configs, _ = process_configs({"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"})
    listeners = configured_listeners(configs, lambda: "own")
    plans = []
    for _ in range(2):
        directory = DataDirectory(tmp_path)
        plans.append(plan_cluster(directory, ANYWHERE, None, None, listeners=listeners))
        command = node_command(directory, plans[-1], plans[-1].nodes[-1])
        directory.close()
    first, second = plans
    ports = [listener.port for listener in first.listeners]
    assert len(set(ports)) == 2 and 0 not in ports
    assert [listener.port for listener in second.listeners] == ports
    assert first.client_address == ("127.0.0.1", ports[0])
    options = dict(zip(command[3::2], command[4::2], strict=True))
    written = f"PLAINTEXT://127.0.0.1:{ports[0]},SSL://127.0.0.1:{ports[1]}"
    assert options["--listeners"] == options["--advertised-listeners"] == written
    assert "--client-listen" not in options and "--advertised-host" not in options


def up(folder: Path, texts: dict[str, str], **options: Any) -> None:
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    given = {"listen": None, "advertised": None, "ready_file": None, "processes": "1", **options}
    run_up(UpOptions(data_dir=folder / "data", config_file=config, **given))


@pytest.mark.parametrize(
    ("texts", "options", "problem"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, {}, "ssl.keystore.location, or ssl.keystore.key .* must be given"),
        ({"listeners": "nonsense"}, {}, "server.properties: listeners has 'nonsense'"),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:0"},
            {"listen": "127.0.0.1:0"},
            "--listen and --advertised are not allowed",
        ),
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, {"advertised": "a:1"}, "--listen and --advertised are not allowed"),
        ({"advertised.listeners": "PLAINTEXT://a:1"}, {}, "set without listeners"),
        ({"ssl.client.auth": "required"}, {}, "ssl.client.auth has no effect, since no listener has TLS"),
    ],
)
def test_what_is_refused_before_anything_starts(
    tmp_path: Path, texts: dict[str, str], options: dict[str, str], problem: str
) -> None:
    with pytest.raises(CommandFailed, match=problem):
        up(tmp_path, texts, **options)
    assert not (tmp_path / "data").exists()


def settings(*flags: str) -> GatewayProcessSettings:
    needed = ["--node-id", "1", "--coordinator-address", "c:1"]
    return read_settings(GatewayProcessSettings, [*needed, *flags], program="x")


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    keystore = Authority("a").issue("localhost").write_combined(tmp_path / "server.pem")
    config.write_text(
        "listeners=PLAINTEXT://:1\n" + f"ssl.keystore.type=PEM\nlistener.name.inner.ssl.keystore.location={keystore}\n"
        "listener.security.protocol.map=INNER:SSL\n"
    )
    flags = ["--config", str(config), "--listeners", "INNER://:5", "--advertised-listeners", "INNER://out:6"]
    node = build(environment(), InProcessNetwork(), settings(*flags))
    (only,) = node._settings.all_listeners()
    assert (only.name, only.port, only.advertised_host, only.advertised_port) == ("INNER", 5, "out", 6)
    assert list(node._tls_listeners) == ["INNER"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--listeners", "SSL://:1"], "TLS needs a certificate"),
        (["--listeners", "x"], "listeners has 'x'"),
        (["--listeners", "PLAINTEXT://:1", "--advertised-host", "a"], "set advertised.listeners instead"),
    ],
)
def test_a_gateway_that_cannot_start_says_why(flags: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        build(environment(), InProcessNetwork(), settings(*flags))
