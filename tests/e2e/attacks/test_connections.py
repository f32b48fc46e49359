"""Connections that cost much and say little: a good client beside them is served, and what they hold is given back."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from support.clients.good_client import MEASURED_S, GoodClient, resident_bytes
from support.clients.raw_kafka import framed, header, read_frame
from support.clusters.kshare_cluster import KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port
from support.environment.memory_folder import memory_folder
from support.hostile.process_figures import MIB, descriptors_of
from support.hostile.role_logs import unexpected_lines
from support.hostile.run import p99_limit_ms

CALM_S = 5.5
GROWTH_LIMIT_BYTES = 96 * MIB
LIMIT_PER_IP = 400
EACH = 60
"""Connections of each kind."""
IDLE_MS = 4_000
CLOSED_WITHIN_S = 25.0
"""A handshake has ten seconds, an idle connection IDLE_MS; the rest is for a busy machine."""
API_VERSIONS, METADATA, SASL_HANDSHAKE = 18, 3, 17


class Attacked:
    """A running cluster with a plain, a TLS and a SASL listener."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.plain, self.tls, self.sasl = (free_port() for _ in range(3))
        Authority("kshare").issue("localhost").write_combined(folder / "server.pem")
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.plain},TLS://127.0.0.1:{self.tls},SASL://127.0.0.1:{self.sasl}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,SASL:SASL_PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "server.pem"),
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{login} required user_alice="secret";',
            "connections.max.idle.ms": str(IDLE_MS),
            "max.connections.per.ip": str(LIMIT_PER_IP),
        }
        self.cluster = stack.enter_context(KshareCluster(folder / "kshare", settings, port=self.plain))


def connect(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    found = []
    for _ in range(count):
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", port))
        found.append(connection)
    return found


def closed(connections: Sequence[socket.socket], within_s: float) -> int:
    """How many the other side closes in time; what it sends before is dropped."""
    left = set(connections)
    deadline = time.monotonic() + within_s
    while left and (rest_s := deadline - time.monotonic()) > 0:
        for connection in select.select(list(left), [], [], rest_s)[0]:
            try:
                data = connection.recv(65_536)
            except OSError:
                data = b""
            if not data:
                left.discard(connection)
    return len(connections) - len(left)


def drip(slow: Sequence[socket.socket], unread: Sequence[socket.socket], until: float) -> None:
    """A byte of a request at a time for each slow client; twenty for one of those that do not read."""
    request = framed(header(METADATA, 1) + struct.pack(">i", 0)) * 20
    number = 0
    frame = framed(header(API_VERSIONS, 0) + bytes(5_000))
    for connection in unread:
        connection.setblocking(False)
    while time.monotonic() < until:
        for connection in slow:
            with suppress(OSError):
                connection.sendall(frame[number : number + 1])
        with suppress(OSError):
            unread[number % len(unread)].send(request)
        number += 1
        select.select([], [], [], 0.02)


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    with ExitStack() as stack:
        yield Attacked(stack.enter_context(memory_folder()), stack)


@pytest.mark.quiet
def test_slow_silent_and_half_open_connections_and_a_flood_of_them(attacked: Attacked) -> None:
    """Slow-loris, answers that nobody reads, half-closed sockets, half handshakes, too many connections."""
    cluster = attacked.cluster
    pid = cluster.role_pid("gateway")
    with ExitStack() as stack, GoodClient(cluster.bootstrap) as client:
        with client.measured() as calm:
            time.sleep(CALM_S)
        before, descriptors = resident_bytes(pid), descriptors_of(pid)
        with client.measured() as figures:
            until = time.monotonic() + MEASURED_S
            slow, unread = connect(stack, attacked.plain, EACH), connect(stack, attacked.plain, EACH)
            half_tls = connect(stack, attacked.tls, EACH)
            for connection in half_tls:
                connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            half_sasl = connect(stack, attacked.sasl, EACH)
            for connection in half_sasl:
                connection.sendall(framed(header(SASL_HANDSHAKE, 1) + struct.pack(">h", 5) + b"PLAIN"))
            half_closed = connect(stack, attacked.plain, EACH)
            for connection in half_closed:
                connection.sendall(framed(header(API_VERSIONS, 0)))
                connection.shutdown(socket.SHUT_WR)
            flood = connect(stack, attacked.plain, LIMIT_PER_IP)
            assert all(read_frame(connection) is not None for connection in half_closed), "each was answered"
            drip(slow, unread, until)
        grown = resident_bytes(pid, peak=True) - before
        most = descriptors_of(pid)
        assert closed(half_closed, CLOSED_WITHIN_S) == EACH
        assert closed(half_sasl, CLOSED_WITHIN_S) == EACH
        assert closed(half_tls, CLOSED_WITHIN_S) == EACH
        assert closed(flood, CLOSED_WITHIN_S) == LIMIT_PER_IP, "at once, or when it was idle"
    log = cluster.log_text()
    assert figures.p99_ms < p99_limit_ms(calm), f"{figures}; before it {calm}"
    assert grown < GROWTH_LIMIT_BYTES, f"{grown // MIB} MiB"
    assert most <= descriptors + LIMIT_PER_IP + 2 * EACH, "a handshake has a second descriptor, for its alert"
    assert not unexpected_lines(log)
    for reason in ("max.connections.per.ip", "connections.max.idle.ms", "the TLS handshake with"):
        assert 0 < log.count(reason) < LIMIT_PER_IP, reason
    assert "such lines were left out before" in log or log.count("max.connections.per.ip") <= 10
