"""Errors of commands as a user sees them: one line, and an exit code."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from kshare.addresses import Address
from kshare.command_examples import EXAMPLES
from kshare.commands.topics import parse_configs
from kshare.demo.reports import parse_report
from kshare.failure import CommandFailed
from kshare.kafka_connection import ConnectionFailed, read_metadata
from kshare.main import app, main
from kshare.up.console import Console
from support.house.command_references import CommandTree, command_problems_of, tree_of

KSHARE = str(Path(sys.executable).parent / "kshare")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `kshare` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["kshare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["up", "--listen", "nowhere"], "--listen must be HOST:PORT"),
        (["up", "--config", "missing.properties"], "configuration missing.properties"),
        (["consume", "t", "--group", "g", "--accept", "--reject"], "give only one of --accept"),
        (["topics", "list", "--bootstrap", "x"], "--bootstrap must be HOST:PORT"),
        (["groups", "list", "--bootstrap", "x"], "--bootstrap must be HOST:PORT"),
        (["topics", "create", "t", "--config", "x"], "--config must be NAME=VALUE"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "up":
        arguments = [*arguments, "--data-dir", "data"]
    assert run(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1 and error.startswith("kshare: ")


@pytest.mark.parametrize(
    ("arguments", "line", "usage"),
    [
        (["topics", "lists"], "No such command 'lists'", "Usage: kshare topics [OPTIONS] COMMAND"),
        (["consume", "t"], "Missing option '--group'", "Usage: kshare consume [OPTIONS]"),
        (["topics", "list", "--bogus"], "No such option: --bogus", "Usage: kshare topics list [OPTIONS]"),
        (["top", "--interval", "x"], "Invalid value for '--interval'", "Usage: kshare top [OPTIONS]"),
        (["--bogus"], "No such option: --bogus", "Usage: kshare [OPTIONS] COMMAND"),
    ],
)
def test_wrong_syntax_is_one_line_and_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str, usage: str
) -> None:
    assert run(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert first.startswith(f"kshare: {line}") and second.startswith(usage) and printed.out == ""


def test_without_a_command_it_is_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 2
    printed = capsys.readouterr()
    assert "Usage: kshare" in printed.out and printed.err == ""


@pytest.mark.parametrize("command", ["profiles", "metrics --describe", "--version", "topics --help"])
def test_a_full_disk_behind_stdout_is_one_line(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([KSHARE, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    line = "kshare: the output is incomplete: no space left where stdout goes\n"
    assert (done.returncode, done.stderr) == (1, line)


@pytest.mark.parametrize("command", ["topics list", "produce t v", "doctor"])
def test_an_interrupted_command_ends_with_130(command: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(
            [KSHARE, *command.split(), "--bootstrap", f"127.0.0.1:{server.getsockname()[1]}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as waiting,
    ):
        connection, _ = server.accept()
        with connection:
            connection.recv(1)  # it has asked, and waits
            waiting.send_signal(signal.SIGINT)
            assert waiting.communicate(timeout=60)[1] == ""
    assert waiting.returncode == 130


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("foo=bar", 'No such configuration property: "foo"'),
        ("ssl.truststore.location=/x", "use `ssl.ca.location`"),
        ("socket.timeout.ms=soon", "socket.timeout.ms"),
    ],
)
@pytest.mark.parametrize(
    "command",
    ["topics list", "groups list", "nodes", "brokers configs", "produce t v", "peek t", "consume t --group g"],
)
def test_a_property_that_does_not_exist_is_refused_by_each_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    content: str,
    words: str,
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"security.protocol=sasl_ssl\n{content}\n")
    assert run(monkeypatch, *command.split(), "--command-config", str(path)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"kshare: --command-config {path}: ") and words in printed.err
    assert printed.err.count("\n") == 1 and printed.out == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("num.partition=3", "num.partition; did you mean num.partitions"),
        ("num.partitions=none", "num.partitions: Not a number"),
        ("group.share.session.timeout.ms=1", "group.share.min.session.timeout.ms"),
        ("a=\\u1", "line 1"),
    ],
)
def test_a_bad_configuration_is_refused_by_file_and_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, words: str
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(content)
    assert run(monkeypatch, "up", "--data-dir", str(tmp_path / "data"), "--config", str(config)) == 2
    error = capsys.readouterr().err
    assert str(config) in error and words in error and error.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_missing_server_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert run(monkeypatch, "groups", "list", "--bootstrap", f"127.0.0.1:{port}") == 1
    assert capsys.readouterr().err.startswith(f"kshare: cannot connect to 127.0.0.1:{port}")


@contextmanager
def answering(answer: bytes) -> Iterator[Address]:
    """A server that answers one request with these bytes, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address("127.0.0.1", server.getsockname()[1])
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak the Kafka protocol"),
        (struct.pack(">i", 20) + b"short", "closed the connection"),
        (struct.pack(">iib", 5, 77, 0), "sent correlation id 77, expected 1"),
        (struct.pack(">iib", 8, 1, 0) + b"\xff\xff\xff", "cannot decode MetadataResponse"),
    ],
)
def test_an_answer_that_is_none_is_refused(answer: bytes, words: str) -> None:
    with answering(answer) as address, pytest.raises(ConnectionFailed, match=words):
        read_metadata(address, timeout_s=10)


def test_topic_configs_of_the_command_line() -> None:
    assert parse_configs(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(CommandFailed, match="'=1'"):
        parse_configs(["=1"])


@pytest.mark.parametrize("line", [b"", b"%4|1700|FAIL|rdkafka", b"{}", b"[1]", b"\xff"])
def test_lines_that_are_no_reports_are_left_alone(line: bytes) -> None:
    assert parse_report(line) is None


def test_lines_reach_the_console_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    for number in range(100):
        console.write(str(number))
    console.close()
    assert capsys.readouterr().out.split() == [str(number) for number in range(100)]


def test_a_command_imports_what_it_needs_only() -> None:
    """What the others need takes longer to import than most commands take."""
    script = "import sys; from kshare.main import main; sys.argv = ['kshare', 'topics', '--help']; main()"
    printed = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script], check=True, capture_output=True, text=True
    )
    imported = {line.rsplit("|", 1)[-1].strip() for line in printed.stderr.splitlines()}
    assert "kshare.commands.topics" in imported
    assert not {"grpc", "aiokafka", "structlog", "pyarrow", "h2", "kshare_gateway", "kshare_rpc"} & imported


def test_the_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"kshare {version('kshare')}\n"


@pytest.mark.parametrize("command", [[], ["groups"], ["groups", "list"], ["produce"]], ids=" ".join)
def test_h_is_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(monkeypatch, *command, "-h") == 0
    short = capsys.readouterr().out
    assert run(monkeypatch, *command, "--help") == 0
    assert short == capsys.readouterr().out and "Usage" in short


def test_each_command_of_a_cluster_prints_json_where_it_is_asked_to() -> None:
    without = {"up", "attach", "demo", "metrics", "audit", "redrive", "report"}
    on_files = {"backup", "restore", "state backup", "state verify", "state export", "state import"}
    tree = tree_of(get_command(app))
    leaves = {name: one for name, one in leaves_of(tree).items() if name not in without | on_files}
    assert len(leaves) > 15
    for name, one in leaves.items():
        assert {"--output", "-o", "--json"} <= one.options, name


def leaves_of(tree: CommandTree, path: str = "") -> dict[str, CommandTree]:
    """The commands that have no commands below them, by their words."""
    if not tree.commands:
        return {path: tree}
    return {
        words: one
        for name, below in tree.commands.items()
        for words, one in leaves_of(below, f"{path} {name}".strip()).items()
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    words = {"bash": "COMP_WORDS", "zsh": "_TYPER_COMPLETE_ARGS", "fish": "_TYPER_COMPLETE_ARGS"}[shell]
    monkeypatch.setenv("_KSHARE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv(words, "kshare groups de")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert run(monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "describe" in printed and "delete" in printed and "reset" not in printed


def test_each_command_has_examples_that_exist() -> None:
    tree = tree_of(get_command(app))
    assert set(EXAMPLES) == set(leaves_of(tree))
    for words, examples in EXAMPLES.items():
        for example in examples:
            assert f"kshare {words}" in example
            assert list(command_problems_of(words, f"    {example}", tree)) == []


def test_examples_stand_at_the_end_of_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "groups", "set", "--help") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[-3:] == ["Examples:", *EXAMPLES["groups set"]]
