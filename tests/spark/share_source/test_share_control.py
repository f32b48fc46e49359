"""The way from the listener to the source."""

from __future__ import annotations

import json
import stat
import threading
import uuid
from typing import Any

from kshare_spark.share_source.control import ControlServer, folder, tell
from kshare_spark.share_source.listener import share_offset
from kshare_spark.share_source.offset import ShareOffset


def test_a_message_arrives_and_is_answered_when_it_has_taken_effect() -> None:
    session = uuid.uuid4().hex
    found: list[dict[str, Any]] = []
    server = ControlServer(session, found.append)
    try:
        assert tell(session, {"finished": 7})
        assert tell(session, {"terminated": True})
        assert found == [{"finished": 7}, {"terminated": True}]
        assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    finally:
        server.close()
    assert not tell(session, {"finished": 8})
    assert not (folder() / session).exists()


def test_a_message_that_fails_is_not_confirmed_and_the_next_one_is_served() -> None:
    session = uuid.uuid4().hex
    served = threading.Event()

    def handle(message: dict[str, Any]) -> None:
        if message.get("finished") == 1:
            raise RuntimeError("cannot")
        served.set()

    server = ControlServer(session, handle)
    try:
        assert not tell(session, {"finished": 1})
        assert not tell(session, {"text": "x" * 10_000})
        assert tell(session, {"finished": 2})
        assert served.is_set()
    finally:
        server.close()


def test_only_our_offsets_are_told() -> None:
    ours = ShareOffset(4, "abc").to_json()
    assert share_offset(json.dumps(ours)) == ("abc", 4)
    assert share_offset(json.dumps(ShareOffset().to_json())) is None
    for other in (None, "", "no json", '{"orders":{"0":5}}', "[1]", "17"):
        assert share_offset(other) is None
