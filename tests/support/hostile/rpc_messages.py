"""Messages of the calls between roles, drawn from the protos' descriptors, and frames around them, some damaged.

A role trusts the others, so a well-formed command of an administrator takes effect. Excluded are the methods and the
values that would take the cluster apart rightly: UNSAFE_METHODS, and node ids that exist.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kshare_rpc.frames import encode_frame
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.network import Method
from support.hostile.hostile_batches import draw_records
from support.hostile.kafka_messages import MAXIMUM_WAIT_MS, Vocabulary

UNSAFE_METHODS = ("RegisterNode", "DeregisterNode", "GiveUpNode", "DrainLeader", "DrainShareCoordinator")
"""Those that say which nodes there are."""
WAITING_METHODS = ("WatchCatalog", "JoinGroup", "SyncGroup")
"""Those that a role may rightly answer late."""
DEPTH_LIMIT = 4
MAXIMUM = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}
SIGNED = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)


class HostileCall(NamedTuple):
    """A frame of an Exchange stream. `has_answer` is false where the frame is none, so that its stream ends."""

    method: str
    correlation_id: int
    frame: bytes
    is_whole: bool = True
    may_wait: bool = False


def methods_of(service: str) -> list[Method[Any, Any]]:
    """The methods of a role that are safe to call with anything."""
    found = [each for each in vars(methods).values() if isinstance(each, Method) and each.service == service]
    return [each for each in found if each.name not in UNSAFE_METHODS]


class CallSource:
    """An endless source of calls of one service; its methods come in turn."""

    def __init__(self, source: random.Random, service: str, vocabulary: Vocabulary) -> None:
        self._source = source
        self._vocabulary = vocabulary
        self._methods: Sequence[Method[Any, Any]] = methods_of(service)
        self._left: list[Method[Any, Any]] = []

    def next_call(self, correlation_id: int) -> HostileCall:
        source = self._source
        if not self._left:
            self._left = list(self._methods)
            source.shuffle(self._left)
        method = self._left.pop()
        message = method.request_type()
        self._fill(message, 0)
        data = message.SerializeToString()
        chance = source.random()
        if chance < 0.15 and data:
            data = self._flipped(data)
        elif chance < 0.2:
            data = data[: source.randrange(len(data) + 1)]
        elif chance < 0.22:
            data = source.randbytes(source.randrange(100))
        path = method.path if source.random() > 0.01 else source.choice(("", "Leader/None", "x" * 1_000))
        payload = draw_records(source) if method.has_payload or source.random() < 0.05 else b""
        header = FrameHeader(correlation_id=correlation_id, method=path, message=data)
        frame = encode_frame(header, (payload,) if payload else ())
        # A flipped bit in the message may be a wait of days.
        may_wait = method.name in WAITING_METHODS or (chance < 0.22 and "Fetch" in method.name)
        if source.random() < 0.02:
            broken = self._flipped(frame[:12]) + frame[12:]
            return HostileCall(path, correlation_id, broken, is_whole=False)
        return HostileCall(path, correlation_id, frame, may_wait=may_wait)

    def _flipped(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._source.choice((1, 2, 8))):
            changed[self._source.randrange(len(changed))] ^= 1 << self._source.randrange(8)
        return bytes(changed)

    def _fill(self, message: Message, depth: int) -> None:
        source = self._source
        for field in message.DESCRIPTOR.fields:
            if source.random() < 0.15:
                continue
            if field.is_repeated:
                if field.message_type is not None and field.message_type.GetOptions().map_entry:
                    continue
                for _ in range(source.choice((0, 1, 1, 2)) if depth < DEPTH_LIMIT else 0):
                    if field.message_type is not None:
                        self._fill(getattr(message, field.name).add(), depth + 1)
                    else:
                        getattr(message, field.name).append(self._value(field))
            elif field.message_type is not None:
                if depth < DEPTH_LIMIT:
                    self._fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        """Of a FieldDescriptor, which is a class of C or of Python."""
        source, kind = self._source, field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return source.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return self._bytes(field.name)
            words = self._vocabulary.strings.get(field.name) or self._vocabulary.users
            return source.choice(words) if source.random() < 0.9 else source.choice(("", "x" * 3_000, "a\nb"))
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return source.choice((0, 1, 2, 3, 99))
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return source.choice((0.0, -1.0, 1e300, float("nan"), float("inf")))
        most = MAXIMUM[kind]
        least = -most - 1 if kind in SIGNED else 0
        if field.name.endswith("_ms"):
            return source.choice((0, 1, 100, MAXIMUM_WAIT_MS))
        if "node" in field.name:
            return source.choice((1_000, 5_000, most, least + 1_000))
        return source.choice((0, 0, 1, 2, 3, most, least, source.randint(least, most)))

    def _bytes(self, name: str) -> bytes:
        source = self._source
        if "topic_id" in name and source.random() < 0.8:
            return source.choice(self._vocabulary.topic_ids)
        return source.randbytes(source.choice((0, 1, 15, 16, 16, 17, 300)))
