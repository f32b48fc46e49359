"""The source of hostile calls: every method is met, and no call takes the cluster apart rightly."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kshare_rpc.exchange.frames import decode_frame
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DEREGISTER_NODE, DRAIN_LEADER, GIVE_UP_NODE, REGISTER_NODE
from kshare_rpc.network import Method
from support.hostile.corpus import FOLDER, corpus_frames
from support.hostile.kafka_messages import Vocabulary
from support.hostile.rpc_messages import WAITING_METHODS, CallSource, HostileCall, methods_of, takes_cluster_apart
from support.hostile.rpc_senders import ALL_PATHS, SERVICES, request_ids

VOCABULARY = Vocabulary(topics=("a", "b"), topic_ids=(bytes(16), bytes([1]) * 16))
METHODS = {path: method for service in SERVICES.values() for method in methods_of(service) for path in [method.path]}


def drawn(service: str, count: int) -> list[HostileCall]:
    calls = CallSource(random.Random(5), service, VOCABULARY, caller="hostile-call-0")
    return [calls.next_call(number) for number in range(1, count + 1)]


@pytest.mark.parametrize("service", SERVICES.values())
def test_every_method_of_a_role_is_called_and_no_node_is_lost_by_it(service: str) -> None:
    calls = drawn(service, 3_000)
    assert {call.name for call in calls} == {method.name for method in methods_of(service)}
    requests = 0
    for call in calls:
        if not call.is_whole:
            continue
        header, _ = decode_frame(call.frame)
        if header.method in METHODS:
            assert not takes_cluster_apart(METHODS[header.method], header.message), call
            requests += bool(header.message)
    assert requests > 1_000
    assert {"RegisterNode", "DeregisterNode", "GiveUpNode", "DrainLeader", "DrainShareCoordinator"} <= {
        path.partition("/")[2] for path in ALL_PATHS
    }


@pytest.mark.parametrize("service", SERVICES.values())
def test_calls_that_may_wait_are_marked(service: str) -> None:
    for call in drawn(service, 2_000):
        if call.name in WAITING_METHODS and call.is_whole:
            assert call.may_wait
        if call.may_wait:
            assert call.name in WAITING_METHODS or "Fetch" in call.name


@pytest.mark.parametrize("service", ["Coordinator", "Leader"])
def test_a_source_begins_with_the_frames_of_the_corpus(service: str) -> None:
    wanted = [decode_frame(frame)[0] for frame in corpus_frames(FOLDER / "calls", f"{service}_*.hex")]
    assert wanted
    found = drawn(service, 2_000)
    messages = [decode_frame(call.frame)[0].message for call in found[: len(wanted)] if call.is_whole]
    assert [header.message for header in wanted] == messages
    of_corpus = {header.method for header in wanted}
    later = [call for call in found[len(wanted) :] if call.method in of_corpus]
    usual = len(found) / len(methods_of(service)) * len(of_corpus)
    assert len(later) > 1.5 * usual, "its frames are changed, too"


NODE = pb.Node(role=pb.ROLE_LEADER, node_id=1_000, incarnation="x", rpc_address="host:1")
NAMELESS = pb.Node(role=pb.ROLE_LEADER, node_id=1_000, rpc_address="host:1")


@pytest.mark.parametrize(
    ("method", "data", "takes_apart"),
    [
        (REGISTER_NODE, pb.RegisterNodeRequest(node=NODE).SerializeToString(), True),
        (REGISTER_NODE, pb.RegisterNodeRequest(node=NAMELESS).SerializeToString(), False),
        (REGISTER_NODE, b"\xff", False),
        (DRAIN_LEADER, pb.DrainLeaderRequest(node_id=1).SerializeToString(), True),
        (DRAIN_LEADER, pb.DrainLeaderRequest(node_id=1_000).SerializeToString(), False),
        (GIVE_UP_NODE, pb.GiveUpNodeRequest(node_id=-5).SerializeToString(), False),
        (DEREGISTER_NODE, b"", True),
    ],
)
def test_commands_that_a_cluster_may_rightly_suffer_from(
    method: Method[Any, Any], data: bytes, takes_apart: bool
) -> None:
    assert takes_cluster_apart(method, data) is takes_apart


def test_an_error_line_names_its_call() -> None:
    texts = ["a call failed request_id=hostile-call-3-77 role=leader", "request_id=g1-8270fe-28-77"]
    assert request_ids([*texts, *texts]) == ["hostile-call-3-77"]
