"""A pod's preStop hook: `python -m kshare_servicekit.scale_down share-coordinator|leader`.

A restarted pod comes back to its volume, so nothing is reassigned. A pod that is scaled away (`kubectl scale`, a
smaller value) does not come back: its partitions are first reassigned to the other nodes. The StatefulSet tells the two
apart: the pod is scaled away if its ordinal is beyond the replicas. If the StatefulSet itself is being deleted or
scaled to 0, all pods end: none is left to take over, so nothing is drained.

The hook ends when the node is empty or its timeout is over (KSHARE_SCALE_DOWN_TIMEOUT_S). Kubernetes then stops the pod
in either case; remaining partitions stay on the volume until the node is back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kshare_rpc.exchange.tls import ExchangeTls
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DRAIN_LEADER, DRAIN_SHARE_COORDINATOR
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallFailed, Channel
from kshare_servicekit.kubernetes_api import ACCOUNT, KubernetesApi
from kshare_servicekit.tls.between_roles import exchange_tls_of_variables

DEFAULT_TIMEOUT_S = 120.0
CALL_TIMEOUT_MS = 5_000
POLL_INTERVAL_S = 0.2


class HookFailed(Exception):
    """The node could not be drained; the text says why."""


def is_scaled_away(ordinal: int, stateful_set: dict[str, Any]) -> bool:
    """Whether a pod with this ordinal does not come back; `stateful_set` as in Kubernetes' API."""
    if "deletionTimestamp" in stateful_set.get("metadata", {}):
        return False
    spec = stateful_set["spec"]
    first, replicas = int(spec.get("ordinals", {}).get("start", 0)), int(spec.get("replicas", 1))
    return replicas > 0 and ordinal >= first + replicas


def pod_place(pod_name: str) -> tuple[str, int]:
    """The name of the pod's StatefulSet, and its ordinal."""
    name, dash, ordinal = pod_name.rpartition("-")
    if not dash or not ordinal.isdecimal():
        raise HookFailed(f"{pod_name!r} is not a pod of a StatefulSet: its name does not end in -<ordinal>")
    return name, int(ordinal)


def coordinator_addresses(variables: Mapping[str, str]) -> list[str]:
    """The addresses in KSHARE_COORDINATOR_ADDRESS; HookFailed if it names none."""
    found = [
        address for text in variables.get("KSHARE_COORDINATOR_ADDRESS", "").split(",") if (address := text.strip())
    ]
    if not found:
        raise HookFailed(
            "KSHARE_COORDINATOR_ADDRESS is not set, so the node was not drained: set it to the coordinators' "
            "addresses, host:port, separated by commas"
        )
    return found


def read_stateful_set(name: str, account: Path = ACCOUNT, server: str | None = None) -> dict[str, Any]:
    """The StatefulSet from Kubernetes' API, read with the pod's service account; HookFailed."""
    try:
        found = KubernetesApi(account, server).get("apis/apps/v1", "statefulsets", name)
    except (OSError, ValueError) as error:
        raise HookFailed(f"cannot read the replicas of {name} from Kubernetes: {error!r}") from error
    if found is None:
        raise HookFailed(f"cannot read the replicas of {name} from Kubernetes: it has no such StatefulSet")
    return found


async def drain(role: str, node_id: int, coordinators: Sequence[str], timeout_s: float) -> None:
    """Drains the node; returns when it is empty, HookFailed if it is not in time."""
    network = GrpcNetwork(tls=_exchange_tls())
    channels = [network.connect(address) for address in coordinators]
    deadline = time.monotonic() + timeout_s
    problem = "no coordinator was asked"
    try:
        while time.monotonic() < deadline:
            for channel in channels:
                try:
                    left, refusal = await _ask(role, node_id, channel)
                except CallFailed as failure:
                    problem = str(failure)
                    continue
                if refusal:
                    problem = refusal
                    continue
                if not left:
                    return
                problem = f"{role} {node_id} still has {left} partitions"
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        raise HookFailed(f"{problem} after {timeout_s:g} s")
    finally:
        for channel in channels:
            await channel.close()


def _exchange_tls() -> ExchangeTls | None:
    """The TLS contexts of the role itself (KSHARE_CONFIG)."""
    try:
        return exchange_tls_of_variables()
    except (OSError, ValueError) as error:
        raise HookFailed(f"the roles' certificates cannot be used: {error}") from error


async def _ask(role: str, node_id: int, channel: Channel) -> tuple[int, str]:
    """The number of partitions left on the node, and the coordinator's error message."""
    if role == "leader":
        leader, _ = await channel.call(DRAIN_LEADER, pb.DrainLeaderRequest(node_id=node_id), timeout_ms=CALL_TIMEOUT_MS)
        return leader.partitions_left, leader.error_message if leader.error_code else ""
    request = pb.DrainShareCoordinatorRequest(node_id=node_id)
    answer, _ = await channel.call(DRAIN_SHARE_COORDINATOR, request, timeout_ms=CALL_TIMEOUT_MS)
    return answer.state_partitions_left, answer.error_message if answer.error_code else ""


def main(arguments: Sequence[str]) -> int:
    """Runs the hook; exit code 1: the node is not empty, and standard error says why."""
    if list(arguments) not in (["share-coordinator"], ["leader"]):
        sys.stderr.write("usage: python -m kshare_servicekit.scale_down share-coordinator|leader\n")
        return 2
    role = arguments[0]
    try:
        stateful_set, ordinal = pod_place(os.environ.get("HOSTNAME", ""))
        if not is_scaled_away(ordinal, read_stateful_set(stateful_set)):
            return 0
        node_id = int(os.environ.get("KSHARE_NODE_ID") or ordinal + 1)
        coordinators = coordinator_addresses(os.environ)
        timeout_s = float(os.environ.get("KSHARE_SCALE_DOWN_TIMEOUT_S") or DEFAULT_TIMEOUT_S)
        asyncio.run(drain(role, node_id, coordinators, timeout_s))
    except (HookFailed, ValueError) as problem:
        sys.stderr.write(f"kshare {role}: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
