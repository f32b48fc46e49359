"""A program that uses the console's HTTP interface as the page does: cookie, CSRF token, JSON, server-sent events."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

TIMEOUT_S = 20.0


class Answer(NamedTuple):
    """An answer; `body` is its JSON, empty for other content."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]


class ConsoleClient:
    """One browser at `address` (HOST:PORT), with HTTPS if there is `tls`."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self.cookie = ""
        self.csrf_token = ""

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(self.address, timeout=TIMEOUT_S, context=self._tls)

    def request(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own; `headers` replace those that the page sends."""
        sent = {"Content-Type": "application/json", "Cookie": self.cookie, "X-Kshare-Csrf": self.csrf_token}
        if method == "GET":
            del sent["Content-Type"]
        connection = self._connection()
        try:
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            content = response.read()
            found = dict(response.getheaders())
        finally:
            connection.close()
        is_json = found.get("Content-Type", "").startswith("application/json")
        return Answer(response.status, found, json.loads(content) if is_json else {})

    def get(self, path: str) -> dict[str, Any]:
        answer = self.request("GET", path)
        assert answer.status == 200, f"{path}: {answer}"
        return answer.body

    def sign_in(self, username: str, password: str) -> Answer:
        answer = self.request("POST", "/api/session", {"username": username, "password": password})
        if answer.status == 200:
            self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.csrf_token = answer.body["csrf_token"]
        return answer

    @contextmanager
    def stream(self, query: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        """The events of a live view, as pairs of name and JSON."""
        connection = self._connection()
        try:
            connection.request("GET", f"/api/stream?{query}", headers={"Cookie": self.cookie})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"] == "text/event-stream"
            yield _events(response)
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    while raw := response.readline():
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
