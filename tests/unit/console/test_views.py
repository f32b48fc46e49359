"""The console's views as pure functions: pages, rates, strips and records."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kshare_console.cluster_client import ShareOffset
from kshare_console.refusal import Refusal
from kshare_console.views.groups import groups
from kshare_console.views.observation import Snapshot
from kshare_console.views.overview import overview
from kshare_console.views.paging import MOST_LIMIT, PageRequest, page_of, place_key
from kshare_console.views.rates import Counters, Rates, Reading, counters_of, rates_between
from kshare_console.views.records import SHOWN_BYTES, value
from kshare_console.views.share_partitions import Reading as PartitionReading
from kshare_console.views.share_partitions import numbers, strip
from kshare_core.states import RecordState
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2

# Pages


def test_pages_give_each_element_once_in_order() -> None:
    elements = [(place_key("orders", number), number) for number in range(25)]
    seen: list[int] = []
    after: str | None = ""
    while after is not None:
        found, after, total = page_of(elements, PageRequest(after=after, limit=10))
        assert total == 25
        seen += found
    assert seen == list(range(25))


def test_a_search_limits_the_total() -> None:
    elements = [(name, name) for name in ("Billing", "audit", "re-billing", "shipping")]
    assert page_of(sorted(elements), PageRequest(search="BILL", limit=1)) == (["Billing"], "Billing", 2)


@pytest.mark.parametrize(
    "limit", ["0", "-1", str(MOST_LIMIT + 1), "x", "", "1e3", "9" * 30, "0000001000000", "0000001" + "0" * 5_000]
)
def test_a_wrong_limit_is_refused(limit: str) -> None:
    with pytest.raises(Refusal) as refused:
        PageRequest.of_query({"limit": limit})
    assert refused.value.status == 400


# Rates


def test_rates_are_differences_of_leaders_that_did_not_restart() -> None:
    before = Reading(10.0, {"a": Counters(100, 10, 90, 1_000), "b": Counters(5_000, 0, 5_000, 9_000)})
    now = Reading(12.0, {"a": Counters(300, 14, 250, 1_400), "b2": Counters(7, 7, 7, 7)})
    assert rates_between(before, now) == Rates(delivered=100.0, redelivered=2.0, accepted=80.0, appended=200.0)
    assert rates_between(None, now) is None
    assert rates_between(Reading(10.0, {"c": Counters()}), now) is None


def test_counts_of_groups_that_are_not_visible_are_left_out() -> None:
    totals = leader_pb2.DescribeShareGroupTotalsResponse(appended_total=9)
    totals.groups.add(group_id="mine", delivered_total=5, redelivered_total=1, accepted_total=4, dead_letters_total=2)
    totals.groups.add(group_id="other", delivered_total=500)
    assert counters_of(totals, {"mine"}) == Counters(5, 1, 4, 9, 2)


# The overview


def test_while_a_coordinator_is_away_its_state_is_shown_and_no_figure_is_made_up() -> None:
    away = Refusal(503, "COORDINATOR_NOT_AVAILABLE", "listing groups: COORDINATOR_NOT_AVAILABLE")
    leader = coordinator_pb2.DescribePartitionsResponse.Leader(node_id=4, rpc_address="l:1", is_live=True)
    snapshot = Snapshot(
        time_ms=1,
        may_see_roles=True,
        coordinators={"c:1": "active", "c:2": "standby", "c:3": "cannot connect to c:3"},
        placement=coordinator_pb2.DescribePartitionsResponse(leaders=[leader]),
        nodes=coordinator_pb2.DescribeNodesResponse(cluster_problems=["no leader is live"]),
        unreachable_leaders={"l:1": "the leader at l:1 did not answer"},
        problems=(away.words,),
        groups_problem=away,
    )
    found = overview(snapshot, [])
    assert [found[name] for name in ("lag_records", "dead_letters", "groups", "redelivered_per_s")] == [None] * 4
    roles = found["roles"]
    assert isinstance(roles, list)
    assert [(each["name"], each["state"]) for each in roles] == [
        ("coordinator-1", "healthy"),
        ("coordinator-2", "standby"),
        ("coordinator-3", "unreachable"),
        ("leader-4", "unreachable"),
    ]
    problems = found["problems"]
    assert isinstance(problems, list)
    assert [(each["words"], each["where"]) for each in problems] == [
        ("no leader is live", {"page": "placement"}),
        (away.words, None),
        ("the leader at l:1 did not answer", {"page": "overview", "role": "leader-4"}),
        ("coordinator-3 does not answer: cannot connect to c:3", {"page": "overview", "role": "coordinator-3"}),
    ]
    with pytest.raises(Refusal, match="COORDINATOR_NOT_AVAILABLE"):
        groups(snapshot, PageRequest())
    hidden = overview(replace(snapshot, may_see_roles=False), [])
    assert (hidden["roles"], hidden["problems"]) == ([], [])


@pytest.mark.parametrize(
    ("is_live", "is_draining", "state"),
    [(True, False, "healthy"), (True, True, "draining"), (False, True, "unreachable")],
)
def test_a_node_that_registers_between_two_reads_is_shown_once(is_live: bool, is_draining: bool, state: str) -> None:
    """The list of nodes was read before the placement, when the leader's lease had run out."""
    leader = coordinator_pb2.DescribePartitionsResponse.Leader(
        node_id=4, rpc_address="l:1", is_live=is_live, is_draining=is_draining
    )
    owner = coordinator_pb2.DescribeStatePartitionsResponse.ShareCoordinator(
        node_id=2, rpc_address="s:1", is_live=is_live, is_draining=is_draining
    )
    snapshot = Snapshot(
        time_ms=1,
        may_see_roles=True,
        placement=coordinator_pb2.DescribePartitionsResponse(leaders=[leader]),
        states=coordinator_pb2.DescribeStatePartitionsResponse(share_coordinators=[owner]),
    )
    roles = overview(snapshot, [])["roles"]
    assert isinstance(roles, list)
    assert [(each["name"], each["state"]) for each in roles] == [("share-coordinator-2", state), ("leader-4", state)]


# Share-partitions

OFFSET = ShareOffset("orders", b"t" * 16, 3, 7, 11)


def loaded() -> PartitionReading:
    result = leader_pb2.DescribeSharePartitionsResponse.Result(
        is_loaded=True, start_offset=10, end_offset=20, next_offset=18, acquired_count=4, leader_epoch=2, state_epoch=5
    )
    result.runs.add(
        first_offset=10,
        last_offset=13,
        delivery_state=RecordState.ACQUIRED,
        next_delivery_state=RecordState.ACKNOWLEDGED,
        delivery_count=2,
        member_id="m",
        lock_remaining_ms=20_000,
    )
    result.runs.add(first_offset=14, last_offset=17, delivery_state=4, next_delivery_state=4, delivery_count=1)
    return PartitionReading(OFFSET, leader="l:1", result=result, lock_duration_ms=30_000)


def test_a_strip_says_who_holds_what_and_until_when() -> None:
    found = strip("g", loaded(), 25, {"m": "worker-7"}, now_ms=1_000_000)
    assert json.loads(json.dumps(found["runs"])) == [
        {
            "first_offset": 10,
            "last_offset": 13,
            "state": "Acquired",
            "next_state": "Acknowledged",
            "delivery_count": 2,
            "member_id": "m",
            "client_id": "worker-7",
            "acquired_ms": 990_000,
            "lock_ends_ms": 1_020_000,
        },
        {
            "first_offset": 14,
            "last_offset": 17,
            "state": "Archived",
            "next_state": "Archived",
            "delivery_count": 1,
            "member_id": None,
            "client_id": None,
            "acquired_ms": None,
            "lock_ends_ms": None,
        },
    ]
    assert (found["start_offset"], found["end_offset"], found["log_end_offset"]) == (10, 20, 25)
    assert (found["next_offset"], found["offsets_left_out"]) == (18, 2)


def test_a_share_partition_that_nobody_uses_has_the_stored_start_offset() -> None:
    found = numbers(PartitionReading(OFFSET, leader="l:1"))
    assert (found["start_offset"], found["end_offset"], found["acquired"], found["is_loaded"]) == (7, None, 0, False)
    found = numbers(PartitionReading(OFFSET, problem="it has no live leader"))
    assert (found["acquired"], found["problem"]) == (None, "it has no live leader")


# Records


@pytest.mark.parametrize(
    ("raw", "text", "is_json"),
    [
        (b"plain", "plain", False),
        (b'{"a": [1, 2]}', '{"a": [1, 2]}', True),
        (b"[1]", "[1]", True),
        (b"42", "42", False),
        (b"{broken", "{broken", False),
        (b"\xff\xfe", None, False),
        (b"", "", False),
        (b"[" * 50_000, "[" * 50_000, False),
    ],
)
def test_bytes_are_shown_as_what_they_are(raw: bytes, text: str | None, is_json: bool) -> None:
    found = value(raw)
    assert found == {"text": text, "json": is_json, "hex": raw.hex(), "size_bytes": len(raw), "truncated": False}


def test_a_long_value_is_cut_between_characters() -> None:
    raw = b"x" + "ü".encode() * SHOWN_BYTES
    found = value(raw)
    assert found is not None
    assert found["text"] == "x" + "ü" * ((SHOWN_BYTES - 1) // 2)
    assert (found["truncated"], found["size_bytes"], found["json"]) == (True, len(raw), False)
    assert found["hex"] == raw[:SHOWN_BYTES].hex()
    assert value(None) is None
