"""The probe of a container asks gRPC health."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from kshare_rpc.grpc_network import GrpcNetwork
from kshare_servicekit.probe import address_to_probe


async def _probed(healthy: bool) -> tuple[int, str]:
    server = await GrpcNetwork().serve_health("Gateway", lambda: healthy)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kshare_servicekit.probe", server.operations_address), stderr=subprocess.PIPE
        )
        _, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, errors.decode()
    finally:
        await server.stop(0)


def test_healthy() -> None:
    assert asyncio.run(_probed(True)) == (0, "")


def test_not_healthy() -> None:
    code, errors = asyncio.run(_probed(False))
    assert code == 1
    assert "is NOT_SERVING" in errors


def test_the_cluster_is_told_apart_from_the_role() -> None:
    problems = ["no leader is live", "3 topic partitions have no live leader"]

    async def probed() -> list[tuple[int | None, str]]:
        server = await GrpcNetwork().serve_health("Gateway", lambda: True, lambda: problems)
        found = []
        try:
            for flags in ([], ["--cluster"]):
                command = [sys.executable, "-m", "kshare_servicekit.probe", *flags, server.operations_address]
                process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
                _, errors = await process.communicate()
                found.append((process.returncode, errors.decode()))
        finally:
            await server.stop(0)
        return found

    (role, words), (cluster, cluster_words) = asyncio.run(probed())
    assert (role, words) == (0, "")
    assert cluster == 1
    assert "NOT_SERVING" in cluster_words and "; ".join(problems) in cluster_words


def test_no_server_there() -> None:
    command = [sys.executable, "-m", "kshare_servicekit.probe", "127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (1, "127.0.0.1:1 did not respond: UNAVAILABLE\n")


@pytest.mark.parametrize(
    ("arguments", "listen", "asked"),
    [
        (["10.0.0.1:9"], "0.0.0.0:9191", "10.0.0.1:9"),
        ([], "0.0.0.0:9191", "127.0.0.1:9191"),
        ([], "10.0.0.1:9191", "10.0.0.1:9191"),
        ([], "", None),
    ],
)
def test_which_address_it_asks(arguments: list[str], listen: str, asked: str | None) -> None:
    assert address_to_probe(arguments, listen) == asked
