"""Frames of requests of every API and version that a gateway serves: good ones, and damaged in each way there is."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.served_apis import ServedApi
from kshare_wire.framing import parse_header
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.message_plans import is_flexible, request_plan
from kshare_wire.messages import MalformedRequest, Request, decode_request
from support.hostile.kafka_messages import MAXIMUM_WAIT_MS, BodyWriter, Vocabulary, unsigned_varint

DAMAGE_OF_A_FIELD = 0.04
SERVED: Mapping[int, ServedApi] = {int(api_key): served for api_key, served in SERVED_APIS.items()}
"""By the number that a frame has."""
CORPUS_SHARE = 0.05
"""Of the requests: those that are made of a frame of the corpus."""
NUMBERS = (b"\0", b"\xff", b"\x7f", b"\0\0", b"\xff\xff", b"\x7f\xff", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0")
"""What replaces bytes of a frame of the corpus: lengths, counts and numbers at their limits."""
BEHIND_CORRELATION_ID = 8
"""The API, the version and the correlation id are at the start of each request."""
WAITING_FIELDS = ("max_wait_ms", "rebalance_timeout_ms", "session_timeout_ms", "timeout_ms")


class Damage(StrEnum):
    """What is wrong with a frame."""

    NONE = "none"
    FIELD = "field"
    VERSION = "version"
    CUT_OFF = "cut-off"
    TOO_LONG = "too-long"
    FLIPPED_BITS = "flipped-bits"
    HEADER = "header"
    FRAME_LENGTH = "frame-length"
    CORPUS = "corpus"
    """A frame that once failed, damaged in one more way."""


WEIGHTS = {
    Damage.NONE: 40,
    Damage.FIELD: 26,
    Damage.VERSION: 3,
    Damage.CUT_OFF: 6,
    Damage.TOO_LONG: 5,
    Damage.FLIPPED_BITS: 14,
    Damage.HEADER: 3,
    Damage.FRAME_LENGTH: 3,
}


class HostileRequest(NamedTuple):
    """A frame with its length.

    `ends_stream`: bytes behind it have no meaning, so the client stops sending there. `is_readable`: a gateway can read
    it, so it keeps the connection. `has_answer` is false for a Produce with acks = 0. `is_known`: it is, or is made of,
    a frame that once failed, so the form of its answer is always checked.
    """

    api_key: int
    version: int
    correlation_id: int
    damage: Damage
    frame: bytes
    ends_stream: bool = False
    is_readable: bool = True
    has_answer: bool = True
    is_known: bool = False


def served_versions() -> list[tuple[int, int]]:
    """Each API and version that a gateway serves."""
    return [
        (int(api_key), version)
        for api_key, served in sorted(SERVED_APIS.items())
        for version in range(served.versions.minimum, served.versions.maximum + 1)
    ]


def header(api_key: int, version: int, correlation_id: int, *, flexible: bool) -> bytes:
    start = struct.pack(">hhih", api_key, version, correlation_id, 7) + b"hostile"
    return start + b"\0" if flexible else start


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class RequestSource:
    """An endless source of requests, each drawn from `source`: the same seed has the same requests.

    APIs and versions come in turn, in an order that is drawn, so that each is met equally often.
    """

    def __init__(
        self,
        source: random.Random,
        vocabulary: Vocabulary,
        api_keys: Collection[int] = (),
        corpus: Sequence[bytes] = (),
    ) -> None:
        """`api_keys` limits it to some APIs, to find the one that something comes from.

        `corpus`: frames with their lengths, of which CORPUS_SHARE of the requests are made.
        """
        self._source = source
        self._corpus = [
            frame[4:]
            for frame in corpus
            if len(frame) >= 4 + BEHIND_CORRELATION_ID and (not api_keys or key_and_version(frame)[0] in api_keys)
        ]
        self._bodies = BodyWriter(source, vocabulary, damage=DAMAGE_OF_A_FIELD)
        self._versions: Sequence[tuple[int, int]] = [
            each for each in served_versions() if not api_keys or each[0] in api_keys
        ]
        self._left: list[tuple[int, int]] = []
        self._damages = list(WEIGHTS)
        self._weights = list(WEIGHTS.values())

    def next_request(self, correlation_id: int) -> HostileRequest:
        if self._corpus and self._source.random() < CORPUS_SHARE:
            return self._accepted(lambda: self._of_corpus(correlation_id))
        if not self._left:
            self._left = list(self._versions)
            self._source.shuffle(self._left)
        api_key, version = self._left.pop()
        return self._accepted(lambda: self._draw(api_key, version, correlation_id))

    def _accepted(self, draw: Callable[[], HostileRequest]) -> HostileRequest:
        """The first request that is drawn and that may not wait for long."""
        while True:
            drawn = draw()
            message = decoded(drawn)
            if drawn.damage is Damage.NONE or not waits_long(message):
                return drawn._replace(is_readable=message is not None, has_answer=has_answer(message))

    def _of_corpus(self, correlation_id: int) -> HostileRequest:
        source = self._source
        payload = source.choice(self._corpus)
        head = payload[:4] + struct.pack(">i", correlation_id)
        body = bytearray(payload[BEHIND_CORRELATION_ID:])
        for _ in range(source.choice((0, 1, 1, 2, 4))):
            self._mutate(body)
        if source.random() < 0.1:
            served = SERVED.get(key_and_version(framed(head))[0])
            newest = 20 if served is None else served.versions.maximum
            head = head[:2] + struct.pack(">h", source.randint(0, newest)) + head[4:]
        frame = framed(head + bytes(body))
        api_key, version = key_and_version(frame)
        return HostileRequest(api_key, version, correlation_id, Damage.CORPUS, frame, is_known=True)

    def _mutate(self, body: bytearray) -> None:
        """One change of the bytes behind the correlation id."""
        source = self._source
        at = source.randrange(len(body) + 1)
        chance = source.randrange(6)
        if chance == 0:
            del body[at:]
        elif chance == 1:
            body[at:at] = source.randbytes(source.choice((1, 2, 4, 100)))
        elif chance == 2:  # a field or an element twice
            body[at:at] = body[source.randrange(len(body) + 1) : at]
        elif chance == 3:  # the rest of another frame
            other = source.choice(self._corpus)[BEHIND_CORRELATION_ID:]
            body[at:] = other[min(at, len(other)) :]
        elif chance == 4:
            number = source.choice(NUMBERS)
            body[at : at + len(number)] = number
        elif body:
            body[source.randrange(len(body))] ^= 1 << source.randrange(8)

    def _draw(self, api_key: int, version: int, correlation_id: int) -> HostileRequest:
        source = self._source
        (damage,) = source.choices(self._damages, self._weights)
        flexible = is_flexible(api_key, version)
        body = self._bodies.body(api_key, request_plan(api_key, version), may_damage=damage is Damage.FIELD)
        payload = header(api_key, version, correlation_id, flexible=flexible) + body
        if damage is Damage.FIELD and not self._bodies.damaged:
            damage = Damage.NONE
        if damage is Damage.FRAME_LENGTH:
            length = len(payload) + source.choice((1, 100, 1 << 20, 2**31 - 1 - len(payload), -1, -len(payload)))
            frame = struct.pack(">i", max(-(2**31), length)) + payload
            return HostileRequest(api_key, version, correlation_id, damage, frame, ends_stream=True)
        return HostileRequest(api_key, version, correlation_id, damage, framed(self._damaged(payload, damage)))

    def _damaged(self, payload: bytes, damage: Damage) -> bytes:
        source = self._source
        if damage is Damage.CUT_OFF:
            return payload[: source.randrange(len(payload))]
        if damage is Damage.TOO_LONG:
            return payload + source.randbytes(source.choice((1, 7, 100, 5_000)))
        if damage is Damage.VERSION:
            version = source.choice((-1, 20, 99, 2**15 - 1, -(2**15), source.randrange(20)))
            return payload[:2] + struct.pack(">h", version) + payload[4:]
        if damage is Damage.HEADER:
            client_id = struct.pack(">h", source.choice((-1, -2, 0, 2**15 - 1, -(2**15))))
            changed = payload[:8] + client_id + payload[10:]
            tags = unsigned_varint(source.choice((0, 3, 2**31 - 1)))
            return changed if source.random() < 0.5 else payload[:17] + tags + payload[18:]
        if damage is Damage.FLIPPED_BITS:
            changed_bytes = bytearray(payload)
            for _ in range(source.choice((1, 1, 2, 8))):
                # never in the correlation id, by which the sender knows its answers
                at = source.randrange(4) if source.random() < 0.05 else source.randrange(8, len(payload))
                changed_bytes[at] ^= 1 << source.randrange(8)
            return bytes(changed_bytes)
        return payload


def key_and_version(frame: bytes) -> tuple[int, int]:
    """The API and the version that a frame with its length has."""
    api_key, version = struct.unpack_from(">hh", frame, 4)
    return api_key, version


def has_answer(message: Request[Any] | None) -> bool:
    return not (isinstance(message, ProduceRequest) and message.acks == 0)


def decoded(request: HostileRequest) -> Request[Any] | None:
    """The request as a gateway reads it; None where it cannot."""
    frame = memoryview(request.frame)[4:]
    if len(frame) < 8:
        return None
    api_key, version = struct.unpack_from(">hh", frame)
    served = SERVED.get(api_key)
    if served is None or not served.versions.minimum <= version <= served.versions.maximum:
        return None
    try:
        read = parse_header(frame, flexible=is_flexible(api_key, version))
        return decode_request(served.request, version, frame, read.body_offset)
    except MalformedRequest:
        return None


def waits_long(message: Request[Any] | None) -> bool:
    """Whether a gateway may rightly take long to answer: damaged bytes may be a valid request to wait for days."""
    return any(getattr(message, name, 0) > MAXIMUM_WAIT_MS for name in WAITING_FIELDS)
