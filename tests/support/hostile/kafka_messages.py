"""Bodies of Kafka requests, drawn field by field from the message definitions.

Values come from what a field of that name usually has (`Vocabulary`), so that many requests pass the first checks and
reach the roles behind the gateway. With a chance of `damage` a field has something else.

Excluded are only values that would be a legitimate command against the good client, or a legitimate long wait:
names of topics and groups are the fuzzer's own, and fields of milliseconds are at most MAXIMUM_WAIT_MS.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.message_plans import FIXED_CODES, FieldPlan, StructPlan
from support.hostile.hostile_batches import draw_records

MAXIMUM_WAIT_MS = 1_000
BITS = {"b": 8, "h": 16, "i": 32, "q": 64, "B": 8, "H": 16, "I": 32, "Q": 64}
HUGE_LENGTHS = (2**31 - 1, 2**31 - 2, 2**24, 2**16, 40_000, 32_767, 300)
NEGATIVE_LENGTHS = (-1, -2, -128, -(2**15), -(2**31))
STRINGS = (
    "",
    "\0",
    "x" * 300,
    "x" * 32_767,
    "é€𐍈",
    "../../etc/passwd",
    "a b",
    "%s%n",
    "__share_group_state",
    ".",
    "..",
)
PARTITIONS = (0, 0, 0, 0, 1, 2, 3, -1, 2**31 - 1, -(2**31))
CONFIG_NAMES = (
    *("cleanup.policy", "retention.ms", "max.message.bytes", "share.auto.offset.reset", "min.insync.replicas"),
    *("share.record.lock.duration.ms", "share.isolation.level", "message.timestamp.type", "no.such.config"),
)
CONFIG_VALUES = ("", "0", "-1", "1000", "earliest", "latest", "delete", "compact", "9" * 40, "LogAppendTime", "é")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What the cluster knows of the fuzzer: its topics with their ids, and the names that it uses for the rest."""

    topics: Sequence[str]
    topic_ids: Sequence[bytes]
    deleted_topics: Sequence[str] = ("hostile-deleted-a", "hostile-deleted-b")
    """Those that DeleteTopics and CreateTopics name: the others are there for the whole run."""
    groups: Sequence[str] = tuple(f"hostile-group-{number}" for number in range(8))
    members: Sequence[str] = ("", "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg", "hostile-member", "1-2-3")
    transactions: Sequence[str] = tuple(f"hostile-transaction-{number}" for number in range(6))
    protocols: Sequence[str] = ("consumer", "range", "uniform", "PLAIN", "SCRAM-SHA-256", "hostile")
    users: Sequence[str] = ("hostile-user", "")
    strings: dict[str, Sequence[str]] = field(init=False)
    """What fields of a name have."""

    def __post_init__(self) -> None:
        words: dict[str, Sequence[str]] = {}
        topics = ("topic", "topics", "topic_name", "name", "topic_names", "subscribed_topic_names", "resource_name")
        groups = ("group_id", "group", "groups", "groups_names", "group_ids", "key", "coordinator_keys")
        for name in topics:
            words[name] = self.topics
        for name in groups:
            words[name] = self.groups
        for name in ("member_id", "leader", "group_instance_id", "instance_id"):
            words[name] = self.members
        for name in ("transactional_id", "transactional_ids"):
            words[name] = self.transactions
        for name in ("protocol_type", "protocol_name", "mechanism", "server_assignor", "protocols"):
            words[name] = self.protocols
        for name in ("config_name", "configuration_keys"):
            words[name] = CONFIG_NAMES
        for name in ("value", "config_value"):
            words[name] = CONFIG_VALUES
        object.__setattr__(self, "strings", words)


class BodyWriter:
    """Writes one body after the other; `damaged` says whether the last one has a value that no client sends."""

    def __init__(self, source: random.Random, vocabulary: Vocabulary, *, damage: float) -> None:
        self._source = source
        self._vocabulary = vocabulary
        self._damage = damage
        self._out = bytearray()
        self.damaged = False
        self._chance = 0.0
        self._spares_topics = False

    def body(self, api_key: int, plan: StructPlan, *, may_damage: bool) -> bytes:
        self._spares_topics = api_key in (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS)
        self._out = bytearray()
        self.damaged = False
        self._chance = self._damage if may_damage else 0.0
        self._struct(plan, 0)
        return bytes(self._out)

    def _strikes(self) -> bool:
        if self._chance and self._source.random() < self._chance:
            self.damaged = True
            return True
        return False

    def _struct(self, plan: StructPlan, depth: int) -> None:
        tagged: list[FieldPlan] = []
        for each in plan.fields:
            if each.tag is None:
                self._field(each, depth)
            else:
                tagged.append(each)
        if plan.flexible:
            self._tags(tagged, depth)

    def _tags(self, known: Sequence[FieldPlan], depth: int) -> None:
        """Known tags by chance; a damaged struct has unknown ones, the same twice, or a count that is untrue."""
        source = self._source
        pieces: list[bytes] = []
        for each in sorted(known, key=lambda plan: plan.tag or 0):
            if source.random() < 0.3:
                outer, self._out = self._out, bytearray()
                self._field(each, depth)
                data, self._out = bytes(self._out), outer
                pieces.append(unsigned_varint(each.tag or 0) + unsigned_varint(len(data)) + data)
        count = len(pieces)
        if self._strikes():
            unknown = unsigned_varint(source.choice((0, 5, 127, 10_000, 2**31 - 1)))
            data = source.randbytes(source.choice((0, 1, 30)))
            length = source.choice((len(data), len(data) + 1, 2**31 - 1))
            pieces += [unknown + unsigned_varint(length) + data] * source.choice((1, 2, 40))
            count = source.choice((len(pieces), len(pieces) + 1, 2**31 - 1))
        self._out += unsigned_varint(count)
        for piece in pieces:
            self._out += piece

    def _field(self, plan: FieldPlan, depth: int) -> None:
        if plan.is_array:
            self._array(plan, depth)
        elif plan.struct_type is not None:
            self._inner(plan, plan.struct_type, depth)
        else:
            self._value(plan)

    def _inner(self, plan: FieldPlan, below: StructPlan, depth: int) -> None:
        if plan.nullable and plan.tag is None:
            if self._source.random() < 0.3:
                self._out.append(0xFF)
                return
            self._out.append(self._source.choice((0, 2, 0x7F)) if self._strikes() else 1)
        self._struct(below, depth + 1)

    def _array(self, plan: FieldPlan, depth: int) -> None:
        source = self._source
        if self._strikes():
            self._length(plan, source.choice(HUGE_LENGTHS + NEGATIVE_LENGTHS), ">i")
            return
        if plan.nullable and source.random() < 0.15:
            self._length(plan, -1, ">i")
            return
        count = source.choice((0, 1, 1, 1, 2, 3)) if depth < 3 else 1
        if depth == 0 and source.random() < 0.005:
            count = 200
        self._length(plan, count, ">i")
        for _ in range(count):
            if plan.struct_type is not None:
                self._struct(plan.struct_type, depth + 1)
            else:
                self._value(plan, is_element=True)

    def _length(self, plan: FieldPlan, length: int, form: str) -> None:
        """A length or a count; null is -1, and in a flexible version 0."""
        if plan.flexible:
            self._out += unsigned_varint((length + 1) & 0xFFFFFFFF)
        else:
            bound = 1 << (8 * struct.calcsize(form) - 1)
            self._out += struct.pack(form, (length + bound) % (2 * bound) - bound)

    def _value(self, plan: FieldPlan, *, is_element: bool = False) -> None:
        """A field without fields of its own, or an element of an array of them, which is never null."""
        code = FIXED_CODES.get(plan.kind)
        if code is not None:
            self._fixed(plan, code)
            return
        form = ">h" if plan.kind == "string" else ">i"
        if self._strikes():
            self._length(plan, self._source.choice(HUGE_LENGTHS + NEGATIVE_LENGTHS), form)
            self._out += self._source.randbytes(self._source.choice((0, 3)))
            return
        if plan.nullable and not is_element and self._source.random() < 0.2:
            self._length(plan, -1, form)
            return
        data = self._data(plan)
        self._length(plan, len(data), form)
        self._out += data

    def _data(self, plan: FieldPlan) -> bytes:
        source = self._source
        if plan.kind == "string":
            return self._string(plan.name).encode()
        if plan.kind == "records":
            return draw_records(source)
        return source.randbytes(source.choice((0, 1, 16, 32, 200)))

    def _string(self, name: str) -> str:
        source = self._source
        chance = source.random()
        if chance < 0.04:
            return source.choice(STRINGS)
        if chance < 0.08:
            return f"random-{source.getrandbits(24)}"
        words = self._vocabulary.strings.get(name) or self._vocabulary.users
        if words is self._vocabulary.topics and self._spares_topics:
            words = self._vocabulary.deleted_topics
        return source.choice(words)

    def _fixed(self, plan: FieldPlan, code: str) -> None:
        source = self._source
        if code == "16s":
            known = () if self._spares_topics else self._vocabulary.topic_ids
            self._out += source.choice(known) if known and source.random() < 0.7 else source.randbytes(16)
        elif code == "?":
            self._out.append(source.randrange(256) if self._strikes() else source.randrange(2))
        elif code == "d":
            self._out += struct.pack(">d", source.choice((0.0, 1.0, -1.0, float("inf"), float("nan"), 1e308)))
        else:
            self._out += struct.pack(">" + code, self._number(plan, code))

    def _number(self, plan: FieldPlan, code: str) -> int:
        source, bits = self._source, BITS[code]
        least, most = (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        name = plan.name
        if name.endswith("_ms") or plan.kind.startswith("timedelta"):
            return source.choice((0, 1, 10, 200, MAXIMUM_WAIT_MS, -1, least))
        if self._strikes():
            return source.choice((least, most, least + 1, most - 1, source.randint(least, most)))
        if name in ("partition", "partitions", "index", "partition_index", "partition_indexes", "num_partitions"):
            return source.choice(PARTITIONS)
        drawn = NUMBERS.get(name)
        if drawn is not None:
            return int(max(least, min(most, drawn(source))))
        return int(max(least, min(most, source.choice((0, 1, 2, 3, 5, 100, -1, source.randint(0, 2**20))))))


NUMBERS: dict[str, Callable[[random.Random], int]] = {
    "acks": lambda source: source.choice((-1, -1, -1, 1, 1, 0, 2)),
    "replication_factor": lambda source: source.choice((1, -1, 0, 3)),
    "acknowledge_types": lambda source: source.choice((0, 1, 2, 3, 4, 5, -1)),
    "share_session_epoch": lambda source: source.choice((0, 0, 1, 2, -1, 7)),
    "session_epoch": lambda source: source.choice((-1, -1, 0, 1, 2)),
    "replica_id": lambda source: source.choice((-1, -1, -1, -2, 0, 1)),
    "max_bytes": lambda source: source.choice((0, 1, 1_000, 1 << 20, 50 << 20, 2**31 - 1)),
    "partition_max_bytes": lambda source: source.choice((0, 1, 1_000, 1 << 20, 2**31 - 1)),
    "min_bytes": lambda source: source.choice((0, 1, 1, 1 << 20, 2**31 - 1)),
    "member_epoch": lambda source: source.choice((0, 0, 1, 2, -1, -2)),
    "resource_type": lambda source: source.choice((2, 2, 32, 32, 4, 8, 16, 3, 0, -1)),
    "timestamp": lambda source: source.choice((-1, -2, -3, -4, -5, -6, 0, 1_700_000_000_000)),
}


def unsigned_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
