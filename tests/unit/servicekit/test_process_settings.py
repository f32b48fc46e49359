"""Flags, KSHARE_ variables, and errors that name both."""

from __future__ import annotations

from pathlib import Path

import pytest

from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process_settings import GatewayProcessSettings, ProcessSettings, read_settings

NEEDED = ["--node-id", "3", "--data-dir", "/var/lib/kshare"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_ID", "DATA_DIR", "LISTEN", "CONFIG", "LOG_LEVEL"):
        monkeypatch.delenv(f"KSHARE_{name}", raising=False)


def read(*arguments: str) -> ProcessSettings:
    return read_settings(ProcessSettings, arguments, program="python -m kshare_leader")


def test_flags() -> None:
    settings = read(
        *NEEDED,
        *("--listen", "0.0.0.0:7000", "--coordinator-address", "coordinator:7001", "--ready-file", "/run/ready"),
        *("--log-format", "json", "--log-level", "debug", "--metrics-listen", "[::1]:9100", "--parent-pid", "77"),
    )
    assert (settings.node_id, settings.data_dir) == (3, Path("/var/lib/kshare"))
    assert (settings.listen, settings.coordinator_address) == ("0.0.0.0:7000", "coordinator:7001")
    assert (settings.ready_file, settings.parent_pid) == (Path("/run/ready"), 77)
    assert (settings.log_format, settings.log_level) == ("json", "debug")
    assert settings.metrics_listen == "[::1]:9100"


def test_defaults() -> None:
    settings = read(*NEEDED)
    assert settings.listen == "127.0.0.1:0"
    assert settings.coordinator_address is None
    assert settings.metrics_listen is None
    assert settings.properties() == {}


def test_several_coordinators() -> None:
    assert read(*NEEDED, "--coordinator-address", "a:1, [::1]:2,c:3").coordinator_address == "a:1,[::1]:2,c:3"


def test_a_flag_goes_before_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSHARE_NODE_ID", "9")
    monkeypatch.setenv("KSHARE_LISTEN", "10.0.0.1:1")
    monkeypatch.setenv("LOG_LEVEL", "nonsense")
    settings = read("--data-dir", "/x", "--node-id", "3")
    assert (settings.node_id, settings.listen) == (3, "10.0.0.1:1")


def test_an_empty_variable_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSHARE_LISTEN", "")
    monkeypatch.setenv("KSHARE_LOG_LEVEL", "loud")
    assert read(*NEEDED, "--log-level", "debug").listen == "127.0.0.1:0"
    with pytest.raises(SettingsError, match=r"\(or KSHARE_LOG_LEVEL\) is 'loud'"):
        read(*NEEDED)


def test_a_flag_is_not_abbreviated() -> None:
    with pytest.raises(SystemExit):
        read(*NEEDED, "--log-form", "json")


def test_a_gateway() -> None:
    arguments = [
        "--node-id",
        "1",
        "--client-listen",
        "0.0.0.0:9092",
        "--advertised-host",
        "a",
        "--advertised-port",
        "1",
    ]
    settings = read_settings(GatewayProcessSettings, arguments, program="x")
    assert (settings.client_listen, settings.advertised_host, settings.advertised_port) == ("0.0.0.0:9092", "a", 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data-dir", "/x"], r"--node-id \(or KSHARE_NODE_ID\) is missing: Unique among"),
        (["--data-dir", "/x", "--node-id", "-1"], "--node-id .* is '-1': .*greater than or equal to 0"),
        (["--data-dir", "/x", "--node-id", "one"], "--node-id .* is 'one'"),
        ([*NEEDED, "--listen", "9092"], "--listen .* is '9092': .*must be host:port"),
        ([*NEEDED, "--listen", "host:99999"], "must be host:port"),
        ([*NEEDED, "--listen", ":1"], "must be host:port"),
        ([*NEEDED, "--listen", "a:1,b:2"], "must be host:port"),
        ([*NEEDED, "--coordinator-address", "a:1,b"], "--coordinator-address .* is 'a:1,b': .*must be host:port"),
        ([*NEEDED, "--coordinator-address", "a:1, a:1"], "must not name an address twice"),
        ([*NEEDED, "--log-level", "loud"], "--log-level .* is 'loud': it must be one of debug, info, warning, error"),
        ([*NEEDED, "--trace-ratio", "2"], "--trace-ratio .* is '2': it must be from 0 to 1"),
        ([*NEEDED, "--trace-ratio", "nan"], "--trace-ratio .* is 'nan': it must be from 0 to 1"),
        (["--listen", "x"], "--node-id .* is missing.*; --data-dir .* is missing.*; --listen .* is 'x'"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        read(*arguments)


def test_an_unknown_flag_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(*NEEDED, "--nonsense")
    assert caught.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


def test_what_is_secret_comes_from_a_file_of_its_own(tmp_path: Path) -> None:
    file, secret = tmp_path / "server.properties", tmp_path / "secret.properties"
    file.write_text("num.partitions=3\nkshare.metadata.etcd.password=none\n")
    secret.write_text("kshare.metadata.etcd.password=secret\n")
    given = read(*NEEDED, "--config", str(file), "--config-secret", str(secret))
    assert given.properties() == {"num.partitions": "3", "kshare.metadata.etcd.password": "secret"}
    assert read(*NEEDED, "--config-secret", str(secret)).properties() == {"kshare.metadata.etcd.password": "secret"}
    upstream = tmp_path / "upstream.properties"
    upstream.write_text("kshare.metadata.etcd.password=last\n")
    three = read(*NEEDED, "--config", str(file), "--config-secret", str(secret), "--config-upstream", str(upstream))
    assert three.properties() == {"num.partitions": "3", "kshare.metadata.etcd.password": "last"}
    with pytest.raises(SettingsError, match="cannot read the config file /nowhere"):
        read(*NEEDED, "--config", str(file), "--config-secret", "/nowhere").properties()


def test_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# ours\nnum.partitions=3\nkshare.x: é\n", encoding="utf-8")
    assert read(*NEEDED, "--config", str(file)).properties() == {"num.partitions": "3", "kshare.x": "é"}
    file.write_text("a=\\u1", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"server\.properties: line 1"):
        read(*NEEDED, "--config", str(file)).properties()
    with pytest.raises(SettingsError, match="cannot read the config file /nowhere"):
        read(*NEEDED, "--config", "/nowhere").properties()
