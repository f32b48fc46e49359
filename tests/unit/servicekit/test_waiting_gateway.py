"""A gateway whose coordinator is away: it is alive, not ready, and not to be killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kshare_core.health_services import CLUSTER, LIVENESS
from support.environment.free_ports import free_port

NOBODY = "127.0.0.1:1"
TIMEOUT_S = 30.0
Status = health_pb2.HealthCheckResponse


async def statuses(address: str) -> dict[str, int]:
    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.wait_for(channel.channel_ready(), TIMEOUT_S)
        stub = health_pb2_grpc.HealthStub(channel)
        names = ("", LIVENESS, CLUSTER)
        return {name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in names}


def test_a_gateway_without_a_coordinator_is_alive_and_not_ready(tmp_path: Path) -> None:
    operations = f"127.0.0.1:{free_port()}"
    flags = ["--node-id", "1", "--coordinator-address", NOBODY, "--operations-listen", operations]
    command = [sys.executable, "-m", "kshare_gateway", *flags, "--client-listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as process:
        try:
            found = asyncio.run(statuses(operations))
        finally:
            process.terminate()
            code = process.wait(TIMEOUT_S)
    assert found == {"": Status.NOT_SERVING, LIVENESS: Status.SERVING, CLUSTER: Status.NOT_SERVING}
    assert code == 0
