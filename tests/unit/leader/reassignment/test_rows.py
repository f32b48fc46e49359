"""Pages and marks of partitions in reassignment: what a sender gives out and refuses, and a receiver refuses."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.reassignment.receiver import _page_of
from kshare_leader.reassignment.rows import FAMILIES, LogExtent, PartitionRows, Place, Row
from kshare_leader.reassignment.sender import PAGE_LIMIT_BYTES, PartitionSender
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.reassignment.copy_loop import MoveProblem
from kshare_runtime.memory_store import DiskEvents, MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from support.leader.log.leader_logs import BROKER, KEY, NODE_ID, TOPIC, StillClock, topic, view_of

MOVE_EPOCH = 9
TARGET = 2
NEIGHBOURS = (TopicPartition(TOPIC, 1), TopicPartition(b"another-00000001", 0))

Stored = dict[str, dict[bytes, bytes]]
family_names = st.sampled_from(FAMILIES)
some_rows = st.dictionaries(family_names, st.dictionaries(st.binary(max_size=3), st.binary(max_size=6)), max_size=8)


def opened(disk: MemoryDisk | None = None) -> MemoryStore:
    return (disk or MemoryDisk()).open_store("leader")


def put(store: MemoryStore, key: TopicPartition, rows: Stored) -> None:
    prefix = keys.partition_prefix(key)
    store.write([Write(family, prefix + name, value) for family, of in rows.items() for name, value in of.items()])


def everything(store: MemoryStore, key: TopicPartition) -> Stored:
    prefix = keys.partition_prefix(key)
    found = {
        family: {name[len(prefix) :]: value for name, value in store.scan(family, prefix, keys.after_prefix(prefix))}
        for family in FAMILIES
    }
    return {family: rows for family, rows in found.items() if rows}


def test_every_family_of_a_partition_moves() -> None:
    assert sorted(FAMILIES) == sorted(keys.PARTITION_FAMILIES) and FAMILIES[0] == keys.LOG


@given(rows=some_rows, others=some_rows, page_bytes=st.integers(1, 20))
def test_pages_bring_every_row_and_no_other(rows: Stored, others: Stored, page_bytes: int) -> None:
    """A key may be empty, as that of the positions is."""
    source, target = opened(), opened()
    put(source, KEY, rows)
    for neighbour in NEIGHBOURS:
        put(source, neighbour, others)
    sending, receiving = PartitionRows(source), PartitionRows(target)
    after: Place | None = None
    for _ in range(200):
        page = sending.page(KEY, FAMILIES, after, page_bytes)
        assert page.size_bytes <= page_bytes or len(page.rows) == 1
        receiving.write_page(KEY, page.family, page.rows)
        if page.rows:
            after = Place(page.family, page.rows[-1].key)
        if page.is_last:
            break
    wanted = {family: of for family, of in rows.items() if of}
    assert everything(target, KEY) == wanted
    assert all(everything(target, neighbour) == {} for neighbour in NEIGHBOURS)
    sending.remove(KEY)
    assert everything(source, KEY) == {}
    assert all(everything(source, other) == {name: of for name, of in others.items() if of} for other in NEIGHBOURS)


def test_the_rows_of_all_families_are_removed_with_one_write() -> None:
    class Writes(DiskEvents):
        count = 0

        def write_begins(self) -> None:
            self.count += 1

    disk = MemoryDisk()
    store = opened(disk)
    put(store, KEY, {family: {b"": b""} for family in FAMILIES})
    disk.events = writes = Writes()
    PartitionRows(store).remove(KEY)
    assert writes.count == 1 and everything(store, KEY) == {}


def test_marks_are_durable_and_of_one_partition() -> None:
    disk = MemoryDisk()
    rows = PartitionRows(opened(disk))
    rows.set_mark(KEY, 5)
    rows.set_mark(NEIGHBOURS[0], 6)
    rows.set_mark(KEY, 7)
    disk.crash()
    again = PartitionRows(opened(disk))
    assert {key: again.mark(key) for key in again.marked()} == {KEY: 7, NEIGHBOURS[0]: 6}
    again.set_mark(KEY, None)
    disk.crash()
    assert PartitionRows(opened(disk)).marked() == [NEIGHBOURS[0]]


def test_a_mark_that_cannot_be_written_is_none() -> None:
    disk = MemoryDisk()
    rows = PartitionRows(opened(disk))
    disk.fail_next_writes(1)
    with pytest.raises(StorageFailure):
        rows.set_mark(KEY, 5)
    assert rows.mark(KEY) is None


@pytest.mark.parametrize(
    ("mark", "given_up_epoch", "stays"),
    [(5, 6, False), (5, 5, True), (5, 0, True), (None, 6, True)],
    ids=["a copy from a leader given up since", "a later copy", "never given up", "no copy"],
)
def test_an_unfinished_copy_from_a_leader_that_was_given_up_is_discarded_before_the_log_opens(
    mark: int | None, given_up_epoch: int, stays: bool
) -> None:
    store = opened()
    put(store, NEIGHBOURS[0], {keys.LOG: {b"1": b"one"}})
    rows = PartitionRows(store)
    put(store, KEY, {keys.LOG: {b"\0" * 8: b"a piece of a batch"}})
    rows.set_mark(KEY, mark)
    opened_at: list[bool] = []

    def before_open(key: TopicPartition, epoch: int) -> None:
        rows.discard_unfinished_copy(key, epoch)
        opened_at.append(bool(everything(store, key)))

    logs = PartitionLogs(store=store, clock=StillClock(), node_id=NODE_ID, configs=BROKER, before_open=before_open)
    found = topic(leaders=(NODE_ID, TARGET))
    found.partitions[0].given_up_epoch = given_up_epoch
    logs.on_view(CatalogView(), view_of(found))
    assert opened_at == [stays]
    assert rows.mark(KEY) == (mark if stays else None)
    assert everything(store, NEIGHBOURS[0]), "rows of other partitions stay"
    logs.close()


# What a sender gives out


def moving_view(
    *, leader: int = NODE_ID, is_moving: bool = True, epoch: int = MOVE_EPOCH, is_fenced: bool = False
) -> CatalogView:
    found = topic(leaders=(leader,))
    partition = found.partitions[0]
    partition.is_moving, partition.moving_to_node_id = is_moving, TARGET
    partition.move_epoch, partition.is_fenced = epoch, is_fenced
    return view_of(found)


class Sending:
    """A sender with a few rows; `view` is what it sees."""

    def __init__(self, view: CatalogView) -> None:
        self.disk = MemoryDisk()
        self.store = opened(self.disk)
        put(self.store, KEY, {keys.LOG: {b"a": b"1", b"b": b"2"}, keys.PRODUCERS: {b"p": b"3"}})
        self.rows = PartitionRows(self.store)
        self.view = view
        self.sender = PartitionSender(
            rows=self.rows, view=lambda: self.view, end_offset=lambda key: 77, node_id=NODE_ID
        )


SERVED_VIEWS = {
    "another epoch": moving_view(epoch=MOVE_EPOCH + 1),
    "an older epoch": moving_view(epoch=MOVE_EPOCH - 1),
    "nothing moves": moving_view(is_moving=False),
    "another leader": moving_view(leader=TARGET),
    "no such topic": view_of(),
    "the catalog has not been received yet": CatalogView(),
}


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("name", SERVED_VIEWS)
def test_what_a_sender_does_not_see_it_does_not_give_out(name: str, is_fenced: bool) -> None:
    sending = Sending(SERVED_VIEWS[name])
    sent = sending.sender.page(KEY, MOVE_EPOCH, None, 100, is_fenced=is_fenced)
    assert sent.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH and sent.page.rows == [] and not sent.page.is_last
    assert sending.rows.mark(KEY) is None


def test_a_sender_that_still_serves_gives_out_batches_only() -> None:
    sending = Sending(moving_view())
    sent = sending.sender.page(KEY, MOVE_EPOCH, None, 100, is_fenced=False)
    assert sent.page.family == keys.LOG and [row.key for row in sent.page.rows] == [b"a", b"b"]
    assert sent.page.is_last and sent.extent == LogExtent(-1, 77)
    assert sending.rows.mark(KEY) is None, "nothing was promised yet"
    rest = sending.sender.page(KEY, MOVE_EPOCH, None, 100, is_fenced=True)
    assert rest.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH and rest.page.rows == []
    later = Place(keys.PRODUCERS, b"")
    assert sending.sender.page(KEY, MOVE_EPOCH, later, 100, is_fenced=False).error_code == ErrorCode.INVALID_REQUEST


def test_the_rest_is_given_out_once_the_mark_is_durable() -> None:
    sending = Sending(moving_view(is_fenced=True))
    sending.disk.fail_next_writes(1)
    refused = sending.sender.page(KEY, MOVE_EPOCH, None, 100, is_fenced=True)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR and refused.page.rows == []
    sent = sending.sender.page(KEY, MOVE_EPOCH, Place(keys.LOG, b"a"), 1, is_fenced=True)
    assert [row.key for row in sent.page.rows] == [b"b"] and sending.rows.mark(KEY) == MOVE_EPOCH


def test_a_log_that_cannot_be_opened_is_not_said_to_be_whole() -> None:
    sending = Sending(moving_view(is_fenced=True))
    sent = sending.sender.page(KEY, MOVE_EPOCH, Place(keys.PRODUCERS, b"p"), 100, is_fenced=True)
    assert sent.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "its rows are none of a log"


@pytest.mark.parametrize("asked", [-1, 0, 1, PAGE_LIMIT_BYTES * 2])
def test_a_page_has_a_limit(asked: int) -> None:
    sending = Sending(moving_view())
    large = {keys.LOG: {bytes([number]): bytes(PAGE_LIMIT_BYTES // 2) for number in range(5)}}
    put(sending.store, KEY, large)
    page = sending.sender.page(KEY, MOVE_EPOCH, None, asked, is_fenced=False).page
    assert len(page.rows) == 1 and not page.is_last


# What a receiver refuses


def answer_of(
    *rows: Row, family: str = keys.LOG, is_last: bool = True
) -> tuple[leader_pb2.TransferPartitionResponse, bytes]:
    data = b"".join([row.key + row.value for row in rows])
    answer = leader_pb2.TransferPartitionResponse(family=family, is_last=is_last, checksum=crc32(data))
    for row in rows:
        answer.rows.add(key_length=len(row.key), value_length=len(row.value))
    return answer, data


def test_a_page_as_it_was_sent() -> None:
    rows = [Row(b"", b"x"), Row(b"a", b""), Row(b"b", b"yy")]
    answer, data = answer_of(*rows, is_last=False)
    page = _page_of(answer, memoryview(data), None)
    assert page.rows == rows and page.family == keys.LOG and not page.is_last
    other, data = answer_of(Row(b"", b"x"), family=keys.POSITIONS)
    assert _page_of(other, memoryview(data), Place(keys.LOG, b"z")).rows == [Row(b"", b"x")]


A, B = Row(b"a", b"1"), Row(b"b", b"2")


def test_bytes_that_changed_on_the_way() -> None:
    answer, data = answer_of(A)
    with pytest.raises(MoveProblem, match="checksum"):
        _page_of(answer, memoryview(data[:-1] + b"9"), None)


@pytest.mark.parametrize(
    ("rows", "family", "is_last", "after", "problem"),
    [
        ((B, A), keys.LOG, True, None, "out of order"),
        ((A, A), keys.LOG, True, None, "out of order"),
        ((A,), keys.LOG, True, Place(keys.LOG, b"a"), "after 61"),
        ((A,), keys.LOG, True, Place(keys.PRODUCERS, b""), "family 'log'"),
        ((A,), keys.META, True, None, "family 'meta'"),
        ((), keys.LOG, False, None, "announced more"),
    ],
)
def test_pages_that_cannot_be(
    rows: tuple[Row, ...], family: str, is_last: bool, after: Place | None, problem: str
) -> None:
    answer, data = answer_of(*rows, family=family, is_last=is_last)
    with pytest.raises(MoveProblem, match=problem):
        _page_of(answer, memoryview(data), after)


@pytest.mark.parametrize(("key_length", "value_length"), [(-1, 2), (1, -1), (9, 0), (0, 9), (1, 0)])
def test_lengths_that_are_not_those_of_the_bytes(key_length: int, value_length: int) -> None:
    answer, data = answer_of(A)
    answer.rows[0].key_length, answer.rows[0].value_length = key_length, value_length
    with pytest.raises(MoveProblem):
        _page_of(answer, memoryview(data), None)


def test_a_view_names_the_same_partition_as_the_tests() -> None:
    partition = moving_view().partition(KEY)
    assert isinstance(partition, coordinator_pb2.Topic.Partition) and partition.is_moving
