"""A pod that is scaled away is emptied first; one that is restarted is not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import COORDINATOR, DRAIN_LEADER, DRAIN_SHARE_COORDINATOR
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Service
from kshare_servicekit.scale_down import (
    HookFailed,
    coordinator_addresses,
    drain,
    is_scaled_away,
    main,
    pod_place,
    read_stateful_set,
)


@pytest.mark.parametrize(
    ("ordinal", "stateful_set", "expected"),
    [
        (0, {"spec": {"replicas": 1}}, False),
        (1, {"spec": {"replicas": 1}}, True),
        (2, {"spec": {"replicas": 3}}, False),
        (0, {"spec": {"replicas": 0}}, False),
        (1, {"spec": {"replicas": 0, "ordinals": {"start": 1}}}, False),
        (1, {"spec": {}}, True),
        (5, {"spec": {"replicas": 2, "ordinals": {"start": 4}}}, False),
        (6, {"spec": {"replicas": 2, "ordinals": {"start": 4}}}, True),
        (1, {"metadata": {"deletionTimestamp": "2026-11-21T00:00:00Z"}, "spec": {"replicas": 1}}, False),
    ],
)
def test_which_pods_are_scaled_away(ordinal: int, stateful_set: dict[str, Any], expected: bool) -> None:
    assert is_scaled_away(ordinal, stateful_set) is expected


def test_the_place_of_a_pod() -> None:
    assert pod_place("my-kshare-share-coordinator-11") == ("my-kshare-share-coordinator", 11)
    for name in ("", "gateway", "gateway-5d9c", "7"):
        with pytest.raises(HookFailed, match="not a pod of a StatefulSet"):
            pod_place(name)


def test_the_coordinators_are_those_of_the_variable() -> None:
    variable = "KSHARE_COORDINATOR_ADDRESS"
    assert coordinator_addresses({variable: "one:1, two:2,"}) == ["one:1", "two:2"]
    for variables in ({}, {variable: ""}, {variable: " ,"}):
        with pytest.raises(HookFailed, match=f"{variable} is not set.*host:port"):
            coordinator_addresses(variables)


@contextmanager
def api_server(asked: list[tuple[str, str | None]]) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            body = json.dumps({"spec": {"replicas": 2}}).encode()
            self.send_response(200 if self.path.endswith("/leaders") else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            """Nothing to standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_kubernetes_is_asked_for_the_replicas(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("queues")
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_bytes(Path("/etc/ssl/certs/ca-certificates.crt").read_bytes())
    asked: list[tuple[str, str | None]] = []
    with api_server(asked) as server:
        assert read_stateful_set("leaders", tmp_path, server) == {"spec": {"replicas": 2}}
        with pytest.raises(HookFailed, match="403"):
            read_stateful_set("others", tmp_path, server)
    assert asked[0] == ("/apis/apps/v1/namespaces/queues/statefulsets/leaders", "Bearer secret")


class Coordinator:
    """Has one partition less at each call."""

    def __init__(self, left: int, refusal: str = "") -> None:
        self.left = left
        self.refusal = refusal
        self.asked: list[int] = []

    async def drain_share_coordinator(
        self, request: pb.DrainShareCoordinatorRequest, payload: memoryview
    ) -> pb.DrainShareCoordinatorResponse:
        self._count(request.node_id)
        code = 16 if self.refusal else 0
        return pb.DrainShareCoordinatorResponse(
            error_code=code, error_message=self.refusal, state_partitions_left=self.left
        )

    async def drain_leader(self, request: pb.DrainLeaderRequest, payload: memoryview) -> pb.DrainLeaderResponse:
        self._count(request.node_id)
        return pb.DrainLeaderResponse(partitions_left=self.left)

    def _count(self, node_id: int) -> None:
        self.asked.append(node_id)
        self.left -= 1

    def service(self) -> Service:
        handlers = {DRAIN_SHARE_COORDINATOR: self.drain_share_coordinator, DRAIN_LEADER: self.drain_leader}
        return Service(COORDINATOR, handlers)  # type: ignore[arg-type]


async def drained(role: str, coordinators: list[Coordinator], timeout_s: float = 20.0) -> None:
    network = GrpcNetwork()
    servers = [await network.serve("127.0.0.1:0", [coordinator.service()]) for coordinator in coordinators]
    try:
        await drain(role, 3, ["127.0.0.1:1", *(server.address for server in servers)], timeout_s)
    finally:
        for server in servers:
            await server.stop(0)


@pytest.mark.parametrize("role", ["share-coordinator", "leader"])
def test_it_waits_until_the_node_is_empty(role: str) -> None:
    coordinator = Coordinator(left=3)
    asyncio.run(drained(role, [coordinator]))
    assert coordinator.asked == [3, 3, 3]


def test_the_active_coordinator_is_found() -> None:
    standby, active = Coordinator(1, refusal="not the active one"), Coordinator(left=1)
    asyncio.run(drained("share-coordinator", [standby, active]))
    assert active.asked == [3]


def test_it_says_what_is_left_when_the_time_is_over() -> None:
    with pytest.raises(HookFailed, match=r"leader 3 still has \d+ partitions after 0.5 s"):
        asyncio.run(drained("leader", [Coordinator(left=1_000)], timeout_s=0.5))


def test_a_bad_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway"]) == 2
    assert "usage:" in capsys.readouterr().err
