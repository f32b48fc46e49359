"""The newest stream of each caller: what an older one brings late is not carried out after the newer one's calls.

A channel has one stream at a time. When it is lost, the caller sees its calls fail, opens another stream and may send
them again. The network may still deliver the bytes of the old one, seconds later: the system sends on what a closed
socket had taken. A commit or the end of a transaction would then take effect a second time, after newer ones. So each
stream says in a header whose it is and which one, and a server ends older ones once it has seen a newer one. Calls that
have begun go on. Callers without the header (any gRPC client) are served as they come.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

STREAM_HEADER = "kshare-stream"
"""Its value: the channel's id, "-", and the number of the stream."""
CALLERS_REMEMBERED = 10_000
"""Channels whose newest stream is remembered, those that opened one last: more than a cluster has."""
_LONGEST = 100


class CallerStream(NamedTuple):
    """A stream of a caller's channel; later ones have higher numbers."""

    channel_id: str
    number: int

    def header(self) -> tuple[str, str]:
        return STREAM_HEADER, f"{self.channel_id}-{self.number}"


def caller_stream_of(text: str) -> CallerStream:
    """The stream that a header's value names; raises ValueError."""
    channel_id, _, number = text.rpartition("-")
    if not channel_id or len(text) > _LONGEST or not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{text[:_LONGEST]!r} is no value of {STREAM_HEADER}: an id, '-' and a number are expected")
    return CallerStream(channel_id, int(number))


class CallerStreams:
    """What a server knows of its callers' streams."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()

    def opened(self, stream: CallerStream) -> bool:
        """Notes a stream; whether none of the same channel is newer."""
        newest = self._newest.get(stream.channel_id, stream.number)
        self._newest[stream.channel_id] = max(newest, stream.number)
        self._newest.move_to_end(stream.channel_id)
        if len(self._newest) > CALLERS_REMEMBERED:
            self._newest.popitem(last=False)
        return stream.number >= newest
