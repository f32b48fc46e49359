"""The node registry: the nodes of each role, with an epoch that fences older incarnations.

A node's epoch comes from one counter that only grows (after Kafka's broker epoch). Registering again with the same
incarnation, because the answer was lost, gives the same epoch; a new incarnation replaces the older one at once. The
lease is the shell's; a node whose lease ran out is removed by a record.

A node reports the highest epoch that it found in its data, and gets a node epoch above it: a leader the highest leader
epoch on its disk, a share coordinator the highest epoch of a claim in a state log. If the coordinator's store is an
older copy, its counter would otherwise reuse epochs that data already has, and the node would be fenced for ever. A
node that finds a higher epoch later registers again. A leader reports the producer ids that its logs have seen in the
same way (`seen_producer_ids`).
"""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.catalog.partition_moves import leader_expiry_records, leader_registration_records
from kshare_coordinator.machine.catalog.seen_producer_ids import seen_producer_ids_records
from kshare_coordinator.machine.catalog.starts import starts_record
from kshare_coordinator.machine.catalog.state_partitions import expiry_records, registration_records
from kshare_coordinator.machine.commands import (
    CatalogChanged,
    Effect,
    ExpireNode,
    LeaseStarted,
    RegisterNode,
    Start,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

NODE_LIMIT = 1_000
"""Registered nodes of all roles together."""
MAX_NODE_EPOCH = (1 << 31) - 1


@decides(Start)
def decide_start(state: CoordinatorState, command: Start) -> Decision[Record, None, Effect]:
    """Notes the start; fixes the cluster id and the number of state partitions where they are not fixed yet."""
    start = starts_record(state, command.start_id)
    found: list[Record] = []
    if not state.cluster_id:
        found.append(records.cluster_text(records.CLUSTER_ID, command.cluster_id))
    if not state.state_partition_count:
        found.append(records.cluster_number(records.STATE_PARTITION_COUNT, command.state_partition_count))
    if found:
        found.append(next_version(state))
    return Decision([start, *found], None)


def next_version(state: CoordinatorState) -> Record:
    """The last catalog record of every decision that has one."""
    return records.cluster_number(records.CATALOG_VERSION, state.version + 1)


def next_epoch(state: CoordinatorState) -> int:
    return state.epoch_counter + 1


@decides(RegisterNode)
def decide_register(
    state: CoordinatorState, command: RegisterNode, configs: Configs, engine: Engine
) -> Decision[Record, pb.RegisterNodeResponse, Effect]:
    """Takes the node into the catalog; KafkaError where it says too little about itself."""
    lease_ms = configs.integer("kshare.node.lease.ms")
    node = pb.Node()
    node.CopyFrom(command.request.node)
    _check(node)
    highest = command.request.highest_leader_epoch
    if not 0 <= highest < MAX_NODE_EPOCH:
        text = f"the highest leader epoch is {highest}; 0 to {MAX_NODE_EPOCH - 1} is allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    found = seen_producer_ids_records(state, command.request.producer_id_end)
    known = state.nodes.get((node.role, node.node_id))
    lease = LeaseStarted(role=node.role, node_id=node.node_id, incarnation=node.incarnation)
    node.node_epoch = known.node_epoch if known else 0
    if known == node and highest <= node.node_epoch:
        return Decision(found, pb.RegisterNodeResponse(node_epoch=node.node_epoch, lease_ms=lease_ms), (lease,))
    if known is None and len(state.nodes) >= NODE_LIMIT:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"There are {len(state.nodes)} nodes; at most {NODE_LIMIT} may be")
    node.node_epoch = max(next_epoch(state), highest + 1)
    found += [records.cluster_number(records.EPOCH_COUNTER, node.node_epoch), records.node(node)]
    if node.role == pb.ROLE_LEADER:
        found.append(records.cluster_number(f"{records.LEADER_NODE_EPOCH}{node.node_id}", node.node_epoch))
        found += leader_registration_records(state, engine, node)
    elif node.role == pb.ROLE_SHARE_COORDINATOR:
        found += registration_records(state, engine, node)
    found.append(next_version(state))
    answer = pb.RegisterNodeResponse(node_epoch=node.node_epoch, lease_ms=lease_ms)
    return Decision(found, answer, (lease, CatalogChanged(nodes=True)))


def _check(node: pb.Node) -> None:
    problem = None
    if node.role not in (pb.ROLE_GATEWAY, pb.ROLE_SHARE_COORDINATOR, pb.ROLE_LEADER):
        problem = f"role {node.role} does not register; gateways, share coordinators and leaders do"
    elif node.node_id < 0:
        problem = f"node id {node.node_id} is negative"
    elif not node.incarnation:
        problem = "the incarnation is empty; it must be unique for each start of the process"
    elif node.role == pb.ROLE_GATEWAY and (endpoint := _unreachable_endpoint(node)):
        problem = f"a gateway must have an advertised host and port; found {endpoint}"
    elif node.role != pb.ROLE_GATEWAY and not node.rpc_address:
        problem = "the rpc_address is empty; other roles need it to reach the node"
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The node cannot be registered: {problem}")


def _unreachable_endpoint(gateway: pb.Node) -> str:
    """The gateway's endpoint that clients could not reach, or not match to a listener; empty if all are valid."""
    if not (gateway.advertised_host and 0 < gateway.advertised_port < 65536):
        return f"{gateway.advertised_host!r}:{gateway.advertised_port}"
    names: dict[str, None] = {}
    for listener in gateway.listeners:
        if not (listener.name and listener.host and 0 < listener.port < 65536) or listener.name in names:
            return f"listener {listener.name!r} at {listener.host!r}:{listener.port}"
        names[listener.name] = None
    return ""


@decides(ExpireNode)
def decide_expire_node(state: CoordinatorState, command: ExpireNode, engine: Engine) -> Decision[Record, bool, Effect]:
    """Takes the node out; where a newer incarnation has replaced it, with a lease of its own, nothing happens."""
    known = state.nodes.get((command.role, command.node_id))
    if known is None or known.incarnation != command.incarnation:
        return Decision((), False)
    found = [records.node_gone(command.role, command.node_id)]
    if command.role == pb.ROLE_SHARE_COORDINATOR:
        found += expiry_records(state, engine, command.node_id)
    elif command.role == pb.ROLE_LEADER:
        found += leader_expiry_records(state, engine, command.node_id)
    found.append(next_version(state))
    return Decision(found, True, (CatalogChanged(nodes=True),))
