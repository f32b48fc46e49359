"""The frames that once failed, in files of hexadecimal digits: NAME.hex, and after `#` what went wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from support.hostile.requests import Damage, HostileRequest

FOLDER = Path(__file__).parent / "corpus"


def corpus_requests() -> Iterator[HostileRequest]:
    """Each request, with its length; a frame shorter than a header has the API and version 0."""
    for file in sorted(FOLDER.glob("*.hex")):
        text = "".join(line.partition("#")[0] for line in file.read_text().splitlines())
        frame = bytes.fromhex(text)
        api_key, version, correlation_id = struct.unpack_from(">hhi", frame.ljust(12, b"\0"), 4)
        yield HostileRequest(api_key, version, correlation_id, Damage.FIELD, frame)
