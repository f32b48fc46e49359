"""Messages of the calls between roles, drawn from the protos' descriptors, and frames around them, some damaged.

A role trusts the others, so a well-formed command of an administrator takes effect. Excluded are only the values that
would take the cluster apart rightly: node ids that exist, and registrations that the coordinator must accept
(`takes_cluster_apart`). A node that registers is given partitions, or is told to clients, until its lease ends.

`corpus/calls` has the frames that once failed, as SERVICE_NAME.hex: each source begins with those of its service, and
makes CORPUS_SHARE of its calls of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kshare_rpc.exchange.frames import decode_frame, encode_frame
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.network import Method
from support.hostile.corpus import FOLDER, corpus_frames
from support.hostile.hostile_batches import draw_records
from support.hostile.kafka_messages import MAXIMUM_WAIT_MS, Vocabulary

NODE_METHODS = ("DeregisterNode", "GiveUpNode", "DrainLeader", "DrainShareCoordinator")
"""Those that end what a node does. RegisterNode begins it."""
FIRST_FREE_NODE_ID = 1_000
"""No node has this id or a higher one."""
CORPUS_SHARE = 0.05
UNREADABLE = b"\xff"
"""Bytes that are no message."""
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
    """A frame of an Exchange stream; where `is_whole` is false, the frame is none, so its stream ends.

    `service` and `name` are of the method that it was drawn for; `method` is what it calls.
    """

    service: str
    name: str
    method: str
    correlation_id: int
    frame: bytes
    is_whole: bool = True
    may_wait: bool = False


def methods_of(service: str) -> list[Method[Any, Any]]:
    return [each for each in vars(methods).values() if isinstance(each, Method) and each.service == service]


def takes_cluster_apart(method: Method[Any, Any], data: bytes) -> bool:
    """Whether the cluster may rightly lose a node, or get one that serves nothing, by a call with these bytes."""
    if method.name not in (*NODE_METHODS, "RegisterNode"):
        return False
    try:
        message = method.request_type.FromString(data)
    except DecodeError:
        return False
    if method.name in NODE_METHODS:
        node_id: int = message.node_id
        return 0 <= node_id < FIRST_FREE_NODE_ID
    assert isinstance(message, pb.RegisterNodeRequest)
    node = message.node
    has_address = bool(node.advertised_host or node.listeners) if node.role == pb.ROLE_GATEWAY else node.rpc_address
    is_node = node.node_id >= 0 and node.incarnation and has_address and message.highest_leader_epoch >= 0
    return bool(is_node) and node.role in (pb.ROLE_GATEWAY, pb.ROLE_SHARE_COORDINATOR, pb.ROLE_LEADER)


class CallSource:
    """An endless source of calls of one service; its methods come in turn, after the service's frames of the corpus.

    `caller` begins the request id of each call, which lines of the roles' logs have; the correlation id follows.
    """

    def __init__(
        self,
        source: random.Random,
        service: str,
        vocabulary: Vocabulary,
        *,
        caller: str = "",
        corpus: Path = FOLDER,
        damages_frames: bool = True,
    ) -> None:
        self._source = source
        self._service = service
        self._vocabulary = vocabulary
        self._caller = caller
        self._damages_frames = damages_frames
        self._methods: Sequence[Method[Any, Any]] = methods_of(service)
        self._by_path = {method.path: method for method in self._methods}
        self._left: list[Method[Any, Any]] = []
        frames = corpus_frames(corpus / "calls", f"{service}_*.hex")
        self._corpus = [(header, bytes(payload)) for header, payload in map(decode_frame, frames)]
        self._corpus_left = list(self._corpus)

    def next_call(self, correlation_id: int) -> HostileCall:
        source = self._source
        if self._corpus_left:
            header, payload = self._corpus_left.pop(0)
            return self._call(self._by_path[header.method], correlation_id, header.message, payload)
        if self._corpus and source.random() < CORPUS_SHARE:
            header, payload = source.choice(self._corpus)
            data = self._safe(self._by_path[header.method], lambda: self._mutated(header.message))
            return self._call(self._by_path[header.method], correlation_id, data, payload, is_damaged=True)
        if not self._left:
            self._left = list(self._methods)
            source.shuffle(self._left)
        method = self._left.pop()
        is_damaged = source.random() < 0.22
        data = self._safe(method, lambda: self._drawn(method, is_damaged=is_damaged))
        payload = draw_records(source) if method.has_payload or source.random() < 0.05 else b""
        return self._call(method, correlation_id, data, payload, is_damaged=is_damaged)

    def _safe(self, method: Method[Any, Any], draw: Callable[[], bytes]) -> bytes:
        """The first of some drawn messages that the cluster has to survive."""
        drawn = (draw() for _ in range(20))
        return next((data for data in drawn if not takes_cluster_apart(method, data)), UNREADABLE)

    def _drawn(self, method: Method[Any, Any], *, is_damaged: bool) -> bytes:
        source, message = self._source, method.request_type()
        self._fill(message, 0)
        data: bytes = message.SerializeToString()
        if not is_damaged:
            return data
        chance = source.random()
        if chance < 0.68 and data:
            return self._flipped(data)
        return data[: source.randrange(len(data) + 1)] if chance < 0.9 else source.randbytes(source.randrange(100))

    def _mutated(self, data: bytes) -> bytes:
        """A message of the corpus with flipped bits, cut off, or with the fields of another one behind it."""
        source, chance = self._source, self._source.random()
        if chance < 0.5 and data:
            return self._flipped(data)
        if chance < 0.75:
            return data[: source.randrange(len(data) + 1)]
        return data + source.choice(self._corpus)[0].message

    def _call(
        self,
        method: Method[Any, Any],
        correlation_id: int,
        data: bytes,
        payload: bytes,
        *,
        is_damaged: bool = False,
    ) -> HostileCall:
        source = self._source
        path = method.path if source.random() > 0.01 else source.choice(("", "Leader/None", "x" * 1_000))
        header = FrameHeader(
            correlation_id=correlation_id, method=path, message=data, request_id=f"{self._caller}-{correlation_id}"
        )
        frame = encode_frame(header, (payload,) if payload else ())
        # A flipped bit in the message may be a wait of days.
        may_wait = method.name in WAITING_METHODS or (is_damaged and "Fetch" in method.name)
        is_whole = source.random() > 0.02 or not self._damages_frames
        if not is_whole:
            frame = self._flipped(frame[:12]) + frame[12:]
        return HostileCall(self._service, method.name, path, correlation_id, frame, is_whole, may_wait and is_whole)

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
            return source.choice((FIRST_FREE_NODE_ID, 5_000, most, least + 1_000))
        return source.choice((0, 0, 1, 2, 3, most, least, source.randint(least, most)))

    def _bytes(self, name: str) -> bytes:
        source = self._source
        if "topic_id" in name and source.random() < 0.8:
            return source.choice(self._vocabulary.topic_ids)
        return source.randbytes(source.choice((0, 1, 15, 16, 16, 17, 300)))
