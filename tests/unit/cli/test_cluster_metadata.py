"""The first metadata request to a cluster: it ends soon, whatever is at the address, and names what is missing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kshare.cluster_metadata import reach, topic_of
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import ConnectionFailed
from kshare.main import main
from kshare_kafka_client import connection
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic
from support.environment.free_ports import free_port
from support.upstream.scripted_broker import NODE_ID, ScriptedBroker

KSHARE = str(Path(sys.executable).parent / "kshare")
COMMANDS = [
    ["topics", "list"],
    ["topics", "create", "t"],
    ["topics", "delete", "t"],
    ["produce", "t", "value"],
    ["consume", "t", "--group", "g"],
    ["peek", "t"],
    ["groups", "list"],
    ["groups", "describe", "g"],
    ["groups", "set", "g", "share.auto.offset.reset=earliest"],
    ["groups", "reset", "g", "--topic", "t", "--to-latest"],
    ["groups", "delete", "g"],
    ["nodes"],
    ["partitions", "list"],
    ["partitions", "drain", "1"],
    ["state", "partitions"],
    ["state", "drain", "1"],
    ["state", "dump", "g"],
    ["redrive", "dlq.t"],
]


@contextmanager
def silent_server() -> Iterator[int]:
    """A port where connections are accepted by the kernel, and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_in_one_line_that_nothing_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    port = closed_port()
    monkeypatch.setattr(sys, "argv", ["kshare", *command, "--bootstrap", f"127.0.0.1:{port}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"kshare: cannot connect to 127.0.0.1:{port}: ") and printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_server_that_never_answers_is_given_up() -> None:
    with silent_server() as port:
        before = time.monotonic()
        with pytest.raises(ConnectionFailed, match=f"no response from 127.0.0.1:{port} within 0.2 s"):
            reach(f"127.0.0.1:{port}", answer_limit_s=0.2)
        assert time.monotonic() - before >= 0.2, "it may answer until then"


# Whoever starts the tests may ignore SIGINT, as a shell does for its background jobs, and processes inherit that.
WAITING = """
import signal, sys, threading
from kshare.cluster_metadata import reach

def interrupt_in_another_thread() -> None:
    if sys.stdin.readline():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt_in_another_thread, daemon=True).start()
reach(sys.argv[1], answer_limit_s=3600)
"""


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("migrate --from {down} --to {down}", "--from or --to"),
        ("migrate --from {down} --to {down} --kshare x:1", "--kshare"),
    ],
)
def test_commands_on_several_clusters_name_their_own_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, named: str
) -> None:
    down = f"127.0.0.1:{closed_port()}"
    monkeypatch.setattr(sys, "argv", ["kshare", *command.format(down=down).split()])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 1 and error.startswith(f"kshare: cannot connect to {down}")
    assert named in error and "--bootstrap" not in error and error.count("\n") == 1


@pytest.mark.parametrize("taken_by", ["the process", "another thread"])
def test_an_interrupt_is_heard_while_nothing_answers(taken_by: str) -> None:
    """The limit is longer than the test's: only the interrupt can end it in time."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(
            [sys.executable, "-c", WAITING, f"127.0.0.1:{server.getsockname()[1]}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as waiting,
    ):
        connection, _ = server.accept()
        with connection:
            connection.recv(1)  # it has asked, and waits
            if taken_by == "the process":
                os.kill(waiting.pid, signal.SIGINT)
            try:
                _, printed = waiting.communicate("\n" if taken_by == "another thread" else None, timeout=30)
            finally:
                waiting.kill()  # if it has not heard it, nothing else ends it
    assert "KeyboardInterrupt" in printed


def test_a_name_that_takes_long_to_look_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        answered.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        with pytest.raises(ConnectionFailed, match=r"no response from no-such-host:9092 within 0\.2 s"):
            reach("no-such-host:9092", answer_limit_s=0.2)
    finally:
        answered.set()


def metadata(*names: str) -> MetadataResponse:
    return MetadataResponse(topics=[MetadataResponseTopic(name=name) for name in names])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ordres", "topic ordres does not exist; did you mean orders?"),
        ("payments", "topic payments does not exist; create it with kshare topics create payments"),
    ],
)
def test_a_topic_that_is_not_there(name: str, line: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        topic_of(metadata("orders", "__consumer_offsets"), name)
    assert str(refused.value) == line and refused.value.exit_code == BAD_USE


def test_a_topic_that_is_there() -> None:
    assert topic_of(metadata("orders"), "orders").name == "orders"


def test_a_reason_that_no_dead_letter_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kshare", "redrive", "dlq.t", "--reason", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == BAD_USE
    assert "--reason must be rejected, delivery_count_limit" in capsys.readouterr().err


def test_every_address_of_a_list_is_asked() -> None:
    """One that answers is enough: the first refuses, and the second is silent."""

    async def asked(*ports: int) -> MetadataResponse:
        async with ScriptedBroker() as broker:
            servers = ", ".join(f"127.0.0.1:{port}" for port in (*ports, broker.port))
            return await asyncio.to_thread(reach, servers, answer_limit_s=20)

    with silent_server() as silent:
        assert [broker.node_id for broker in asyncio.run(asked(closed_port(), silent)).brokers] == [NODE_ID]
    with pytest.raises(ConnectionFailed, match="cannot connect"):
        reach(f"127.0.0.1:{closed_port()},127.0.0.1:{closed_port()}")


def test_of_several_addresses_the_one_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without IPv6, where localhost is 127.0.0.1 and also ::1."""
    closed = free_port()
    stream = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    found = [(*stream, ("127.0.0.1", closed)), (*stream, ("255.255.255.255", closed))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(connection.ConnectionFailed, match="refused"):
        connection.Connection(("localhost", closed), client_id="test", timeout_s=5.0)
