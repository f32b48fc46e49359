"""Connections that send hostile requests in bursts, and demand an answer or the end of the connection within a bound.

A burst ends with an ApiVersions of version 0 as a probe. Answers come in the order of the requests, so its answer says
that all before it are answered, save a Produce with acks = 0, which has none. A burst ends at the first request
that a gateway cannot read. Where the gateway closes the connection, that request counts as refused. Those whose answers
were still under way count as not reached.

A burst whose last frame has an untrue length ends with a half-closed connection instead, which the gateway must close.
"""

from __future__ import annotations

import asyncio
import errno
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import MalformedRequest, decode_response
from support.hostile.bursts import Bursts
from support.hostile.corpus import FOUND_FOLDER, FoundFrames
from support.hostile.entrances import Entrance, NotLoggedIn
from support.hostile.requests import SERVED, HostileRequest, framed, header, key_and_version

ANSWER_BOUND_S = 30.0
READ_BYTES = 1 << 18
CLOSED = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
"""What a read says of a connection that the gateway has closed; the last one with uvloop, after a half-close."""
ANSWERS_PER_CHECK = 10
"""One of so many is decoded, which costs the sender as much as drawing a request."""


@dataclass
class Outcomes:
    """What became of the requests."""

    answered: int = 0
    refused: int = 0
    """Requests at which the gateway closed the connection."""
    not_reached: int = 0
    connections: int = 0
    longest_s: float = 0.0
    by_version: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Requests that were answered or refused, by the API and version that they were drawn for."""
    by_damage: Counter[str] = field(default_factory=Counter)
    good_refused: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Requests that a gateway can read, at which it closed the connection."""
    refused_whole: int = 0
    """Those of `refused` that came whole: the gateway ended the connection, and its log says why."""
    refusal_times: set[tuple[int, int]] = field(default_factory=set)
    """In which seconds since 1970 the bursts of those were sent, and in which the end of the connection was seen."""
    checked: int = 0
    """Answers whose form was checked."""
    problems: list[str] = field(default_factory=list)
    found: FoundFrames = field(default_factory=lambda: FoundFrames(FOUND_FOLDER))

    @property
    def sent(self) -> int:
        return self.judged + self.not_reached

    @property
    def judged(self) -> int:
        return self.answered + self.refused

    def problem(self, text: str, request: HostileRequest | None = None) -> None:
        if len(self.problems) < 50:
            shown = "" if request is None else f": {request.damage} {request.frame[:600].hex()}"
            self.problems.append(text + shown)
            if request is not None:
                self.keep(text, request)

    def keep(self, text: str, request: HostileRequest) -> None:
        """Writes the request's frame into the folder of those that failed."""
        served = SERVED.get(request.api_key)
        name = f"api_{request.api_key}" if served is None else served.name
        self.found.add(f"{name}_v{request.version}_{request.damage}", request.frame, text)


def probe(correlation_id: int) -> bytes:
    return framed(header(int(ApiKey.API_VERSIONS), 0, correlation_id, flexible=False))


class _Answers:
    """Cuts what a connection receives into frames; None at its end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._data = bytearray()

    async def next_frame(self) -> bytes | None:
        while True:
            if len(self._data) >= 4:
                (length,) = struct.unpack_from(">i", self._data)
                if len(self._data) >= 4 + length:
                    frame = bytes(self._data[4 : 4 + length])
                    del self._data[: 4 + length]
                    return frame
            try:
                data = await self._reader.read(READ_BYTES)
            except OSError as error:
                if error.errno not in CLOSED:
                    raise
                return None
            if not data:
                return None
            self._data += data


class Pace:
    """At most so many requests a second, of all senders together; None: as many as the machine can do."""

    def __init__(self, requests_per_second: float | None) -> None:
        self._requests_per_second = requests_per_second
        self._next_s = 0.0

    async def turn(self, requests: int) -> None:
        """Waits until so many more may be sent. What was not sent in time is not made up for later."""
        if self._requests_per_second is None:
            return
        now_s = asyncio.get_running_loop().time()
        at_s = max(self._next_s, now_s)
        self._next_s = at_s + requests / self._requests_per_second
        if at_s > now_s:
            await asyncio.sleep(at_s - now_s)


class Sender:
    """Sends to a gateway and judges the answers. Several `run`s may be under way at once."""

    def __init__(self, entrance: Entrance, outcomes: Outcomes) -> None:
        self._entrance = entrance
        self._outcomes = outcomes
        self._answers = 0

    async def run(self, bursts: Bursts, pace: Pace, is_enough: Callable[[], bool]) -> None:
        """One client after the other sends until `is_enough` says so, at the pace that all share."""
        while not is_enough():
            try:
                reader, writer = await self._entrance.connect()
            except (OSError, NotLoggedIn) as error:
                self._outcomes.problem(f"no connection to the gateway: {error}")
                await asyncio.sleep(0.2)
                continue
            self._outcomes.connections += 1
            try:
                answers = _Answers(reader)
                while not is_enough() and await self._paced_burst(writer, answers, bursts, pace):
                    pass
            finally:
                writer.transport.abort()

    async def run_one(self, request: HostileRequest) -> None:
        """Sends one request over a connection of its own."""
        reader, writer = await self._entrance.connect()
        self._outcomes.connections += 1
        await self.burst(writer, _Answers(reader), [request])
        writer.transport.abort()

    async def _paced_burst(self, writer: asyncio.StreamWriter, answers: _Answers, bursts: Bursts, pace: Pace) -> bool:
        burst = bursts.next_burst()
        await pace.turn(len(burst))
        return await self.burst(writer, answers, burst)

    async def burst(self, writer: asyncio.StreamWriter, answers: _Answers, burst: Sequence[HostileRequest]) -> bool:
        """Sends a burst and judges what comes back; whether the connection can be used further."""
        began, began_at = time.monotonic(), time.time()
        probe_id = -(burst[-1].correlation_id % 2**30) - 1
        data = b"".join(request.frame for request in burst)
        try:
            async with asyncio.timeout(ANSWER_BOUND_S):
                try:
                    writer.write(data if burst[-1].ends_stream else data + probe(probe_id))
                    if burst[-1].ends_stream:
                        writer.write_eof()
                    await writer.drain()
                except OSError:  # the connection is closed already
                    pass  # what was answered before is still to be read
                answered, is_open = await self._read(answers, burst, probe_id)
        except TimeoutError:
            self._outcomes.problem(f"neither answered nor closed within {ANSWER_BOUND_S} s")
            for request in burst:
                self._outcomes.problem("in the burst without an end", request)
            return False
        self._outcomes.longest_s = max(self._outcomes.longest_s, time.monotonic() - began)
        self._count(burst, answered, is_open, began_at)
        return is_open

    async def _read(
        self, answers: _Answers, burst: Sequence[HostileRequest], probe_id: int
    ) -> tuple[list[HostileRequest], bool]:
        """The requests that were answered, and whether the probe was answered."""
        left = list(burst)
        answered: list[HostileRequest] = []
        while (frame := await answers.next_frame()) is not None:
            (correlation_id,) = struct.unpack_from(">i", frame)
            if correlation_id == probe_id:
                for request in left:
                    self._check_unanswered(request)
                return answered + left, True
            while left and left[0].correlation_id != correlation_id:
                request = left.pop(0)
                self._check_unanswered(request)
                answered.append(request)
            if not left:
                self._outcomes.problem(f"an answer with correlation id {correlation_id}, which no request has")
                return answered, False
            request = left.pop(0)
            answered.append(request)
            self._answers += 1
            if request.is_known or self._answers % ANSWERS_PER_CHECK == 0:
                self._check(request, frame)
        return answered, False

    def _check_unanswered(self, request: HostileRequest) -> None:
        if request.has_answer:
            self._outcomes.problem("a request was passed over", request)

    def _check(self, request: HostileRequest, frame: bytes) -> None:
        """An answer to a request that a gateway can read has the form of its version, damaged or not."""
        if not request.is_readable or request.ends_stream:
            return
        api_key, version = key_and_version(request.frame)
        self._outcomes.checked += 1
        try:
            decode_response(SERVED[api_key].request.RESPONSE, version, memoryview(frame))
        except MalformedRequest as error:
            self._outcomes.problem(f"the answer is no {ApiKey(api_key).api_name} response: {error}", request)

    def _count(
        self, burst: Sequence[HostileRequest], answered: Sequence[HostileRequest], is_open: bool, began_at: float
    ) -> None:
        outcomes = self._outcomes
        judged = list(answered)
        unanswered = burst[len(answered) :]
        if not is_open and unanswered:
            # The gateway reads on while it works, so what it cannot read may end answers to requests before it.
            refused = next((each for each in unanswered if not each.is_readable or each.ends_stream), unanswered[0])
            judged.append(refused)
            outcomes.refused += 1
            if not refused.ends_stream:
                outcomes.refused_whole += 1
                outcomes.refusal_times.add((int(began_at), int(time.time())))
            if refused.is_readable and not refused.ends_stream:
                outcomes.good_refused[refused.api_key, refused.version] += 1
        outcomes.answered += len(answered)
        outcomes.not_reached += len(burst) - len(judged)
        for request in judged:
            outcomes.by_version[request.api_key, request.version] += 1
            outcomes.by_damage[request.damage] += 1
