"""Each administrative API of groups, and each that looks for their coordinator, with each of its errors: Kafka's codes.

Every request is sent to kshare and to Apache Kafka 4.3.1, which have the same groups: share groups, consumer groups of
both protocols with and without members, and one that only committed an offset. Versions at both ends of a range where
the answers differ are asked. Left out is what Kafka answers with UNKNOWN_SERVER_ERROR (a member epoch without a member
id, partitions of the empty group id) or not at all (offsets of a share-partition that does not exist).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kshare_wire.generated.api_keys import ApiKey
from support.groups.classic_driver import subscription
from support.groups.classic_wire import ClassicConnection
from support.groups.consumer_wire import GroupConnection
from support.kafka.same_answers import (
    BUSY,
    MEMBERLESS,
    OTHER_TOPIC,
    PARTITIONS,
    SIMPLE,
    TOPIC,
    Asked,
    Pair,
    TopicId,
    asked_pair,
    wait_for_coordinator,
)

MODERN, MODERN_EMPTY = "modern", "modern-empty"
"""Consumer groups of KIP-848, with the member "m" in epoch 2, and without one."""
STABLE, CONNECT, EMPTY = "stable", "connect", "empty"
"""Classic groups: of consumers with a member, of another protocol type with one, and one whose member left."""
MISSING_ID = uuid.UUID("11111111-2222-3333-4444-555555555555")
SESSION_MS = 1_000_000
GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    settings = {"group_consumer_max_session_timeout_ms": "1000000", "group_consumer_session_timeout_ms": "1000000"}
    with asked_pair(tmp_path_factory.mktemp, **settings) as pair, ExitStack() as stack:
        for asked in (pair.kshare, pair.kafka):
            _make_groups(asked, stack)
        yield pair


def _make_groups(asked: Asked, stack: ExitStack) -> None:
    wire = stack.enter_context(ClassicConnection(asked.bootstrap))
    modern = stack.enter_context(GroupConnection(asked.bootstrap))
    wait_for_coordinator(asked.requests, TRANSACTION_KEY, "any")
    for group in (MODERN, MODERN_EMPTY):
        assert modern.join(group, "m", [TOPIC]).member_epoch == 2
    assert modern.heartbeat(MODERN_EMPTY, "m", -1).error_code == 0
    for group, kind in ((STABLE, "consumer"), (CONNECT, "connect"), (EMPTY, "consumer")):
        protocols = (("range", subscription(TOPIC)),)
        fields: dict[str, Any] = {"version": 3, "session_ms": SESSION_MS, "protocol_type": kind, "protocols": protocols}
        joined = wire.join(group, **fields)
        synced = wire.sync(group, joined.member_id, joined.generation_id, {joined.member_id: b""}, version=3)
        assert (joined.error_code, synced.error_code) == (0, 0)
        if group == EMPTY:
            assert wire.leave(group, (joined.member_id, None)).error_code == 0


def offsets(*names: str, number: int = 0) -> list[dict[str, Any]]:
    return [{"name": name, "partition_indexes": [number]} for name in names]


def committing(group: str, epoch: int = -1, member: str = "", *, name: Any = TOPIC, **fields: Any) -> dict[str, Any]:
    """One offset; `number`, `metadata` and `instance` say which and how."""
    part = {"partition_index": fields.get("number", 0), "committed_offset": fields.get("offset", 1)}
    topic = {"topic_id": name} if isinstance(name, uuid.UUID | TopicId) else {"name": name}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": epoch,
        "member_id": member,
        "topics": [{**topic, "partitions": [{**part, "committed_metadata": fields.get("metadata", "")}]}],
    }


def deleting(group: str, *topics: tuple[str, list[int]]) -> dict[str, Any]:
    named = [{"name": name, "partitions": [{"partition_index": each} for each in parts]} for name, parts in topics]
    return {"group_id": group, "topics": named}


def fetching(group: str, epoch: int = -1, member: str | None = None, *topics: Any) -> dict[str, Any]:
    """`topics` None: all."""
    return {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": list(topics) if topics else None}


def lagging(group: str, *topics: tuple[str, list[int]]) -> dict[str, Any]:
    named = [{"topic_name": name, "partitions": parts} for name, parts in topics]
    return {"groups": [{"group_id": group, "topics": named or None}]}


EVERY = [BUSY, MEMBERLESS, SIMPLE, MODERN, MODERN_EMPTY, STABLE, CONNECT, EMPTY, "nobody", ""]
SHARED_KEY = f"{MEMBERLESS}:{MISSING_ID}:0"
CASES: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *((ApiKey.FIND_COORDINATOR, version, {"key": key}) for version in (0,) for key in ("g", "")),
    *(
        (ApiKey.FIND_COORDINATOR, version, {"key": key, "key_type": kind})
        for version in (1, 3)
        for key, kind in (("g", 0), ("", 0), ("t", 1), ("", 1), (SHARED_KEY, 2), ("g", 3), ("g", -1))
    ),
    *(
        (ApiKey.FIND_COORDINATOR, version, {"coordinator_keys": keys, "key_type": kind})
        for version in (4, 5, 6)
        for keys, kind in (
            (["g", "h", ""], GROUP_KEY),
            (["t", ""], TRANSACTION_KEY),
            ([], GROUP_KEY),
            (["g", "g"], GROUP_KEY),
            (["g"], 7),
        )
    ),
    (ApiKey.FIND_COORDINATOR, 5, {"coordinator_keys": [SHARED_KEY], "key_type": SHARE_KEY}),
    *(
        (ApiKey.FIND_COORDINATOR, 6, {"coordinator_keys": [key], "key_type": SHARE_KEY})
        for key in ("", "g", "g:0", f"g:{MISSING_ID}", "g:not-an-id:0", f"g:{MISSING_ID}:x", f"g:{MISSING_ID}:-1", "::")
    ),
    *((ApiKey.DESCRIBE_GROUPS, version, {"groups": EVERY}) for version in (0, 5, 6)),
    (ApiKey.DESCRIBE_GROUPS, 6, {"groups": [STABLE, STABLE]}),
    (ApiKey.DESCRIBE_GROUPS, 6, {"groups": []}),
    *((ApiKey.CONSUMER_GROUP_DESCRIBE, version, {"group_ids": EVERY}) for version in (0, 1)),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": []}),
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": EVERY}),
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": []}),
    *((ApiKey.LIST_GROUPS, 5, {"states_filter": states}) for states in ([], ["Empty"], ["stable"], ["DEAD"], ["none"])),
    *((ApiKey.LIST_GROUPS, 5, {"types_filter": kinds}) for kinds in (["Share"], ["consumer"], ["CLASSIC"], ["none"])),
    (ApiKey.LIST_GROUPS, 5, {"types_filter": ["share"], "states_filter": ["Empty"]}),
    *((ApiKey.LIST_GROUPS, version, {}) for version in (0, 3, 4)),
    *(
        (ApiKey.DELETE_GROUPS, version, {"groups_names": [MODERN, STABLE, CONNECT, BUSY, "nobody", ""]})
        for version in (0, 1, 2)
    ),
    (ApiKey.DELETE_GROUPS, 2, {"groups_names": []}),
    *(
        (ApiKey.OFFSET_DELETE, 0, deleting(group, (TOPIC, [0, PARTITIONS]), (OTHER_TOPIC, [0]), ("none", [0])))
        for group in [*EVERY, "nobody else"]
        if group != SIMPLE
    ),
    (ApiKey.OFFSET_DELETE, 0, deleting(MODERN)),
    (ApiKey.OFFSET_DELETE, 0, deleting(STABLE, (TOPIC, []))),
    *((ApiKey.OFFSET_COMMIT, 9, committing(group)) for group in (BUSY, MODERN, STABLE, CONNECT, "")),
    *((ApiKey.OFFSET_COMMIT, version, committing("nobody", 3, "m")) for version in (2, 8, 9)),
    *((ApiKey.OFFSET_COMMIT, version, committing(MODERN, 2, "m")) for version in (2, 8, 9)),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN, 1, "m", number=1)),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN, 3, "m")),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN, 2, "x")),
    (ApiKey.OFFSET_COMMIT, 9, committing(STABLE, 1, "x")),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN_EMPTY, name="none")),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN_EMPTY, number=PARTITIONS)),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN_EMPTY, number=-1)),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN_EMPTY, name="bad name")),
    (ApiKey.OFFSET_COMMIT, 9, committing(MODERN_EMPTY, metadata="m" * 4097)),
    (ApiKey.OFFSET_COMMIT, 10, committing(MODERN_EMPTY, name=MISSING_ID)),
    (ApiKey.OFFSET_COMMIT, 10, committing(MODERN_EMPTY, name=uuid.UUID(int=0))),
    (ApiKey.OFFSET_COMMIT, 10, committing("nobody", 3, "m", name=TopicId(TOPIC))),
    *(
        (ApiKey.OFFSET_FETCH, version, {"group_id": group, "topics": offsets(TOPIC, "none")})
        for version in (1, 2, 5, 7)
        for group in EVERY
    ),
    *((ApiKey.OFFSET_FETCH, version, {"group_id": MODERN, "topics": None}) for version in (2, 7)),
    *((ApiKey.OFFSET_FETCH, version, {"groups": [fetching(group) for group in EVERY]}) for version in (9, 10)),
    (ApiKey.OFFSET_FETCH, 8, {"groups": [{"group_id": group, "topics": None} for group in EVERY]}),
    (ApiKey.OFFSET_FETCH, 9, {"groups": [fetching(MODERN, epoch, member) for epoch, member in ((2, "m"), (1, "m"))]}),
    (
        ApiKey.OFFSET_FETCH,
        9,
        {"groups": [fetching(MODERN, 2, "x"), fetching(STABLE, 2, "x")]},
    ),
    (ApiKey.OFFSET_FETCH, 9, {"groups": [fetching(SIMPLE, -1, None, *offsets(TOPIC, "none", number=9))]}),
    (ApiKey.OFFSET_FETCH, 9, {"groups": []}),
    *(
        (
            ApiKey.OFFSET_FETCH,
            10,
            {"groups": [fetching(SIMPLE, -1, None, {"topic_id": topic, "partition_indexes": [0]})]},
        )
        for topic in (MISSING_ID, uuid.UUID(int=0), TopicId(TOPIC))
    ),
    *(
        (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, lagging(group, *topics))
        for version in (0, 1)
        for group in EVERY[:-1]
        for topics in ([(TOPIC, [0]), ("none", [0]), (OTHER_TOPIC, [0])], [])
    ),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, lagging("")),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": []}),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("api", "version", "values"), CASES)
def test_the_codes_are_kafkas(pair: Pair, api: ApiKey, version: int, values: dict[str, Any]) -> None:
    pair.same(api, version, **values)


@pytest.mark.timeout(240)
def test_what_is_done_has_no_error(pair: Pair) -> None:
    """Each in the order in which it makes sense; the second time says that nothing is left."""
    steps: list[tuple[ApiKey, int, dict[str, Any]]] = [
        (ApiKey.OFFSET_COMMIT, 9, committing("made")),
        (ApiKey.OFFSET_COMMIT, 10, committing("made", name=TopicId(TOPIC), number=1)),
        (ApiKey.OFFSET_FETCH, 9, {"groups": [fetching("made")]}),
        (ApiKey.OFFSET_DELETE, 0, deleting("made", (TOPIC, [0]), (OTHER_TOPIC, [0]))),
        (ApiKey.OFFSET_DELETE, 0, deleting("made", (TOPIC, [0, 1]))),
        (ApiKey.OFFSET_COMMIT, 2, committing("made")),
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["made", "made"]}),
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["made"]}),
    ]
    for api, version, values in steps:
        pair.same(api, version, **values)
