"""A container's health probe: `python -m kshare_servicekit.probe [--cluster] [HOST:PORT]`; exit code 0: healthy.

The probe calls gRPC health at the operations address (default: KSHARE_OPERATIONS_LISTEN on this machine). The answer
reflects the role's `problems()`: SERVING only while it has started and can do its work. With --cluster, a gateway or a
coordinator must also see that the whole cluster can serve; problems are written to standard error. --cluster is for
people who look at containers, not for routing traffic.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kshare_core.health_services import CLUSTER, CLUSTER_PROBLEMS_KEY

TIMEOUT_S = 3.0
WILDCARD_HOSTS = frozenset({"0.0.0.0", "[::]", ""})


def probe(address: str, service: str = "") -> str | None:
    """The problem of the role; None: it is healthy."""
    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer, call = health_pb2_grpc.HealthStub(channel).Check.with_call(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{address} did not respond: {error.code().name}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    words = [value.decode() for key, value in call.trailing_metadata() or () if key == CLUSTER_PROBLEMS_KEY]
    if service == CLUSTER:
        return f"the cluster is {status} by {address}: {'; '.join(words)}"
    return f"{address} is {status}"


def address_to_probe(arguments: Sequence[str], listen: str) -> str | None:
    """The given address, else the operations address as seen from within the container."""
    if arguments:
        return arguments[0]
    host, colon, port = listen.rpartition(":")
    if not colon:
        return None
    return f"127.0.0.1:{port}" if host in WILDCARD_HOSTS else listen


def main(arguments: Sequence[str]) -> int:
    """Runs the probe; returns the exit code: 0 healthy, 1 not healthy, 2 no address given."""
    is_cluster = "--cluster" in arguments
    arguments = [argument for argument in arguments if argument != "--cluster"]
    address = address_to_probe(arguments, os.environ.get("KSHARE_OPERATIONS_LISTEN", ""))
    if address is None:
        sys.stderr.write(
            "usage: python -m kshare_servicekit.probe [--cluster] HOST:PORT (or set KSHARE_OPERATIONS_LISTEN)\n"
        )
        return 2
    problem = probe(address, CLUSTER if is_cluster else "")
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
