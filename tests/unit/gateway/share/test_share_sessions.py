"""Share sessions: the rules one by one, and any sequence of requests against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_gateway.share.sessions import (
    MAXIMUM_EPOCH,
    ListedPartition,
    ShareSessionKey,
    ShareSessionTable,
    next_epoch,
)

TOPIC = bytes(range(16))
P0, P1, P2 = (TopicPartition(TOPIC, index) for index in range(3))
KEY = ShareSessionKey("group", "member")
HERE, ELSEWHERE = 1, 2
PARTITIONS_LIMIT = 1_000


def fetched(*partitions: TopicPartition) -> list[ListedPartition]:
    return [ListedPartition(partition, True) for partition in partitions]


def opened(table: ShareSessionTable, *partitions: TopicPartition, connection: int = HERE) -> None:
    table.open(KEY, connection, fetched(*partitions), has_acknowledgements=False)


def code_of(call: object) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        call()  # type: ignore[operator]
    return raised.value.code


def test_epochs_go_on_by_one() -> None:
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    opened(table, P0)
    for epoch in (1, 2, 3):
        assert table.update(KEY, epoch, [], [], HERE).next_epoch == epoch + 1
    assert table.acknowledge(KEY, 4, HERE).next_epoch == 5
    for wrong in (4, 6, 1, -2, 7):
        assert code_of(lambda wrong=wrong: table.update(KEY, wrong, [], [], HERE)) == (
            ErrorCode.INVALID_SHARE_SESSION_EPOCH
        )
    assert table.update(KEY, 5, [], [], HERE).next_epoch == 6


def test_the_topics_of_a_session_are_those_of_its_partitions() -> None:
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    other = TopicPartition(TOPIC[::-1], 0)
    opened(table, P0, P1)
    assert list(table.expect(KEY, HERE).topic_ids) == [TOPIC]
    assert list(table.update(KEY, 1, fetched(other), [], HERE).topic_ids) == [TOPIC, other.topic_id]
    assert list(table.update(KEY, 2, [], [P0], HERE).topic_ids) == [TOPIC, other.topic_id]
    assert list(table.update(KEY, 3, [], [P1], HERE).topic_ids) == [other.topic_id]


def test_a_session_has_at_most_so_many_partitions() -> None:
    """When it opens, and when partitions join; a refused request changes nothing."""
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    most = [TopicPartition(TOPIC, index) for index in range(PARTITIONS_LIMIT)]
    one_more = TopicPartition(TOPIC, PARTITIONS_LIMIT)
    assert code_of(lambda: opened(table, *most, one_more)) == ErrorCode.INVALID_REQUEST
    assert len(table) == 0
    opened(table, *most)
    assert code_of(lambda: table.update(KEY, 1, fetched(one_more), [], HERE)) == ErrorCode.INVALID_REQUEST
    assert table.update(KEY, 1, fetched(most[0]), [], HERE).next_epoch == 2
    opened(table, *most[:-1])
    assert len(table.update(KEY, 1, fetched(most[-1]), [], HERE).partitions) == PARTITIONS_LIMIT


def test_epochs_wrap_to_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, MAXIMUM_EPOCH - 1, MAXIMUM_EPOCH)] == [1, 2, MAXIMUM_EPOCH, 1]
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    opened(table, P0)
    session = table.expect(KEY, HERE)
    session.next_epoch = MAXIMUM_EPOCH
    table.update(KEY, MAXIMUM_EPOCH, [], [], HERE)
    assert table.update(KEY, 1, [], [], HERE).next_epoch == 2


def test_a_wrong_epoch_changes_nothing() -> None:
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    opened(table, P0)
    assert code_of(lambda: table.update(KEY, 9, fetched(P1), [P0], HERE)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert list(table.expect(KEY, HERE).partitions) == [P0]


def test_partitions_are_added_and_forgotten() -> None:
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    opened(table, P0, P1)
    assert list(table.update(KEY, 1, fetched(P2, P2), [P0], HERE).partitions) == [P1, P2]
    assert list(table.update(KEY, 2, fetched(P0), [P0], HERE).partitions) == [P1, P2]


def test_a_partition_that_is_only_acknowledged_does_not_join() -> None:
    """franz-go 1352."""
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    opened(table, P0)
    assert list(table.update(KEY, 1, [ListedPartition(P1, False)], [], HERE).partitions) == [P0]
    both = [ListedPartition(P1, True), ListedPartition(P1, False)]
    assert list(table.update(KEY, 2, both, [], HERE).partitions) == [P0, P1]


def test_without_a_session() -> None:
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    not_found = ErrorCode.SHARE_SESSION_NOT_FOUND
    assert code_of(lambda: table.update(KEY, 1, [], [], HERE)) == not_found
    assert code_of(lambda: table.acknowledge(KEY, 1, HERE)) == not_found
    assert code_of(lambda: table.expect(KEY, HERE)) == not_found
    opened(table, P0)
    assert code_of(lambda: table.update(KEY, 1, [], [], ELSEWHERE)) == not_found


def test_acknowledging_never_opens_a_session() -> None:
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    assert code_of(lambda: table.acknowledge(KEY, 0, HERE)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    with_acknowledgements = lambda: table.open(KEY, HERE, fetched(P0), has_acknowledgements=True)  # noqa: E731
    assert code_of(with_acknowledgements) == ErrorCode.INVALID_REQUEST
    assert len(table) == 0


def test_the_limit() -> None:
    table = ShareSessionTable(2, PARTITIONS_LIMIT)
    for member in ("a", "b"):
        table.open(ShareSessionKey("group", member), HERE, [], has_acknowledgements=False)
    assert code_of(lambda: opened(table, P0)) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    table.open(ShareSessionKey("group", "a"), HERE, [], has_acknowledgements=False)
    assert len(table) == 2


def test_the_end_of_an_older_connection_keeps_the_newer_session() -> None:
    """KAFKA-19950."""
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    opened(table, P0)
    old = table.expect(KEY, HERE)
    _, replaced = table.open(KEY, ELSEWHERE, fetched(P1), has_acknowledgements=False)
    assert replaced is old and not table.is_current(old)
    assert table.connection_lost(HERE) == []
    assert table.update(KEY, 1, [], [], ELSEWHERE).next_epoch == 2
    assert [session.key for session in table.connection_lost(ELSEWHERE)] == [KEY]
    assert len(table) == 0


def test_every_partition_is_first_in_its_turn() -> None:
    table = ShareSessionTable(10, PARTITIONS_LIMIT)
    opened(table, P0, P1, P2)
    session = table.expect(KEY, HERE)
    assert [session.rotated()[0] for _ in range(4)] == [P0, P1, P2, P0]
    assert session.rotated() == [P1, P2, P0]
    table.update(KEY, 1, [], [P0, P1, P2], HERE)
    assert session.rotated() == []


class SessionTableComparison(RuleBasedStateMachine):
    """Any requests of three members over two connections, against a dict of (connection, epoch, partitions)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ShareSessionTable(2, PARTITIONS_LIMIT)
        self.model: dict[ShareSessionKey, tuple[int, int, list[TopicPartition]]] = {}

    members = st.sampled_from(["a", "b", "c"]).map(lambda name: ShareSessionKey("group", name))
    connections = st.sampled_from([HERE, ELSEWHERE])
    some = st.lists(st.sampled_from([P0, P1, P2]), max_size=3)

    @rule(key=members, connection=connections, partitions=some)
    def open(self, key: ShareSessionKey, connection: int, partitions: list[TopicPartition]) -> None:
        self.model.pop(key, None)
        if len(self.model) >= 2:
            code = code_of(lambda: self.table.open(key, connection, fetched(*partitions), has_acknowledgements=False))
            assert code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        else:
            self.table.open(key, connection, fetched(*partitions), has_acknowledgements=False)
            self.model[key] = (connection, 1, list(dict.fromkeys(partitions)))

    @rule(key=members, connection=connections, epoch=st.integers(1, 4), added=some, forgotten=some)
    def update(
        self,
        key: ShareSessionKey,
        connection: int,
        epoch: int,
        added: list[TopicPartition],
        forgotten: list[TopicPartition],
    ) -> None:
        def call() -> None:
            self.table.update(key, epoch, fetched(*added), forgotten, connection)

        known = self.model.get(key)
        if known is None or known[0] != connection:
            assert code_of(call) == ErrorCode.SHARE_SESSION_NOT_FOUND
        elif known[1] != epoch:
            assert code_of(call) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        else:
            call()
            partitions = [part for part in dict.fromkeys([*known[2], *added]) if part not in forgotten]
            self.model[key] = (connection, epoch + 1, partitions)

    @rule(key=members)
    def close(self, key: ShareSessionKey) -> None:
        assert (self.table.remove(key) is None) == (self.model.pop(key, None) is None)

    @rule(connection=connections)
    def lose(self, connection: int) -> None:
        expected = {key for key, (owner, _, _) in self.model.items() if owner == connection}
        assert {session.key for session in self.table.connection_lost(connection)} == expected
        for key in expected:
            del self.model[key]

    @invariant()
    def same(self) -> None:
        assert len(self.table) == len(self.model)
        for key, (connection, epoch, partitions) in self.model.items():
            session = self.table.expect(key, connection)
            assert (session.next_epoch, list(session.partitions)) == (epoch, partitions)


TestSessionTableComparison = SessionTableComparison.TestCase
TestSessionTableComparison.settings = settings(max_examples=60, deadline=None)
