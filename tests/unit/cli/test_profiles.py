"""`kshare --profile NAME`: which cluster and properties a command gets, and what `kshare profiles` shows of them."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from kshare.command_options import (
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    COORDINATOR_VARIABLE,
    DATA_DIR_VARIABLE,
    PROFILE_VARIABLE,
)
from kshare.commands_on_demand import PLACES
from kshare.failure import BAD_USE
from kshare.main import app, main
from kshare.profiles import WITHOUT_A_PROFILE
from support.house.command_references import CommandTree, tree_of

VARIABLES = (BOOTSTRAP_VARIABLE, COMMAND_CONFIG_VARIABLE, COORDINATOR_VARIABLE, DATA_DIR_VARIABLE, PROFILE_VARIABLE)
SECURE = """\
bootstrap.servers=kafka-1:9092,kafka-2:9092
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.username=worker
sasl.password=secret-word
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of profiles; what a command sets in the environment ends with the test."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profiles = tmp_path / "kshare" / "profiles"
    profiles.mkdir(parents=True)
    return profiles


def write(folder: Path, name: str, text: str, mode: int = 0o600) -> Path:
    path = folder / f"{name}.properties"
    path.write_text(text)
    path.chmod(mode)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `kshare` with these arguments; 0 where it just returns."""
    monkeypatch.setattr(sys, "argv", ["kshare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The program that `kshare client-config` prints: it has the bootstrap servers and all properties."""
    assert run(monkeypatch, *arguments) == 0
    return capsys.readouterr().out


def test_a_profile_gives_address_and_properties(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "production", SECURE)
    for variable in (BOOTSTRAP_VARIABLE, COORDINATOR_VARIABLE, DATA_DIR_VARIABLE):
        monkeypatch.setenv(variable, "another-cluster")
    text = settings(monkeypatch, capsys, "--profile", "production", "client-config", "python")
    assert '"bootstrap.servers": "kafka-1:9092,kafka-2:9092"' in text and text.count("bootstrap.servers") == 1
    assert '"sasl.username": "worker"' in text and "another-cluster" not in text
    assert not {COORDINATOR_VARIABLE, DATA_DIR_VARIABLE} & set(os.environ), "they may be those of another cluster"


def test_options_override_the_profile(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(folder, "production", SECURE)
    monkeypatch.setenv(PROFILE_VARIABLE, "production")
    own = tmp_path / "own.properties"
    own.write_text("bootstrap.servers=not-used:1\nsecurity.protocol=ssl\n")
    arguments = ("client-config", "python", "--bootstrap", "other:9092", "--command-config", str(own))
    text = settings(monkeypatch, capsys, *arguments)
    assert '"bootstrap.servers": "other:9092"' in text and '"security.protocol": "ssl"' in text
    assert "kafka-1" not in text and "sasl" not in text and "not-used" not in text


def test_a_command_connects_where_the_profile_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    write(folder, "local", f"bootstrap.servers=127.0.0.1:{port}\n", 0o644)
    assert run(monkeypatch, "--profile", "local", "groups", "list") == 1
    assert f"cannot connect to 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "mode", "words"),
    [
        ("production", SECURE, 0o640, "chmod 600"),
        ("production", SECURE, 0o604, "has sasl.password, and other users may access it (-rw----r--)"),
        ("production", "bootstrap.servers=a:1\nsasl.jaas.config=x password=y\n", 0o644, "chmod 600"),
        ("production", "security.protocol=ssl\n", 0o644, "has no bootstrap.servers"),
        ("production", "bootstrap.servers=\\u1\n", 0o600, "line 1"),
        ("staging", SECURE, 0o600, "there is no profile production in"),
        ("staging", SECURE, 0o600, "there are staging"),
    ],
)
def test_a_profile_that_cannot_be_used(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    mode: int,
    words: str,
) -> None:
    write(folder, name, text, mode)
    assert run(monkeypatch, "--profile", "production", "groups", "list") == BAD_USE
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and "secret-word" not in error


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", ".hidden", "nothing"])
def test_a_name_stays_in_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for outside in ("../outside", ".hidden"):
        write(folder, outside, SECURE)
    assert run(monkeypatch, "--profile", name, "groups", "list") == BAD_USE
    assert f"there is no profile {name}" in capsys.readouterr().err


def test_the_list_has_no_secrets(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "production", SECURE)
    write(folder, "open", SECURE, 0o644)
    write(folder, "local", "bootstrap.servers=localhost:9092\n", 0o644)
    monkeypatch.setenv(PROFILE_VARIABLE, "local")
    assert run(monkeypatch, "profiles", "--output", "json") == 0
    printed = capsys.readouterr().out
    assert "secret-word" not in printed
    local, readable, production = json.loads(printed)["profiles"]
    state = f"set by {PROFILE_VARIABLE}"
    assert local == {
        "profile": "local",
        "bootstrap": "localhost:9092",
        "protocol": "plaintext",
        "user": None,
        "state": state,
    }
    assert (readable["profile"], readable["bootstrap"]) == ("open", None) and "chmod 600" in readable["state"]
    assert (production["protocol"], production["user"], production["state"]) == ("sasl_ssl", "worker", "ok")
    assert run(monkeypatch, "profiles") == 0
    assert "3 profiles in" in (table := capsys.readouterr().out) and "secret-word" not in table


def test_commands_without_a_profile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--profile", "production", "metrics", "--describe") == BAD_USE
    assert "--profile has no effect on kshare metrics" in capsys.readouterr().err
    monkeypatch.setenv(PROFILE_VARIABLE, "missing")
    assert run(monkeypatch, "metrics", "--describe") == 0, "the variable is for the others"


def test_each_command_that_takes_a_cluster_takes_a_profile() -> None:
    def takes_a_cluster(tree: CommandTree) -> bool:
        return {"--bootstrap", "--command-config"} <= tree.options or any(map(takes_a_cluster, tree.commands.values()))

    commands = tree_of(get_command(app)).commands
    assert set(PLACES) < set(commands) and set(commands) > WITHOUT_A_PROFILE
    takes = {name for name, tree in commands.items() if takes_a_cluster(tree)}
    assert takes - WITHOUT_A_PROFILE == set(commands) - WITHOUT_A_PROFILE
    assert takes & WITHOUT_A_PROFILE == {"audit"}, "whose history may be in files: it says itself which cluster"


def test_names_are_completed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "production", SECURE)
    write(folder, "staging", SECURE)
    monkeypatch.setenv("_KSHARE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "kshare --profile pro")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run(monkeypatch) == 0
    assert capsys.readouterr().out.split() == ["production"]
