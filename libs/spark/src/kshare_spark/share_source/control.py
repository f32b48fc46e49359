"""Messages from the user's process to the source's process, by a socket in a folder that only this user can enter.

The source serves `<folder>/<session>`. A message is one line of JSON, {"finished": batch} or {"terminated": true}; the
response is a line, sent when the message has taken effect. The folder's permissions protect the socket, so no secret is
needed. If the two processes are on different machines there is no socket, and Spark's own calls have to suffice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

MESSAGE_LIMIT_BYTES = 4096
CONNECT_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 30.0
DONE = b"done\n"


def folder() -> Path:
    """The folder, created if missing; PermissionError if another user owns it or can enter it."""
    path = Path(tempfile.gettempdir()) / f"kshare-spark-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} must be a folder of user {os.getuid()} with mode 0700")
    return path


class ControlServer:
    """Serves one session's socket in a thread of its own until `close`."""

    def __init__(self, session: str, handle: Callable[[dict[str, Any]], None]) -> None:
        """`handle` gets each message, one at a time."""
        self._path = folder() / session
        self._handle = handle
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(self._path))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="kshare-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(CONNECT_TIMEOUT_S)
                    self._handle(_message(connection))
                    connection.sendall(DONE)
                except Exception:
                    # Spark's own calls have the same effect later; a malformed message must not end the thread.
                    logger.exception("a message to the share source could not be handled")


def tell(session: str, message: dict[str, Any]) -> bool:
    """Sends a message to the session's source; False if the source is not on this machine or failed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.connect(str(folder() / session))
            connection.sendall(json.dumps(message).encode() + b"\n")
            connection.settimeout(ANSWER_TIMEOUT_S)
            return connection.recv(len(DONE)) == DONE
    except OSError as error:
        logger.info("the share source %s cannot be told %s: %s", session, message, error)
        return False


def _message(connection: socket.socket) -> dict[str, Any]:
    found = b""
    while not found.endswith(b"\n"):
        piece = connection.recv(MESSAGE_LIMIT_BYTES)
        found += piece
        if not piece or len(found) > MESSAGE_LIMIT_BYTES:
            raise ValueError(f"a message must be one line of at most {MESSAGE_LIMIT_BYTES} bytes")
    message = json.loads(found)
    if not isinstance(message, dict):
        raise ValueError("a message must be a JSON object")
    return message
