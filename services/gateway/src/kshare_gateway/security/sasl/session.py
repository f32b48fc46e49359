"""The authentication of one connection to a SASL listener (SaslServerAuthenticator of Kafka 4.3.1).

A client asks for a mechanism (SaslHandshake), exchanges its messages (SaslAuthenticate; raw frames after version 0 of
SaslHandshake), and is authenticated. Before that it gets nothing else but ApiVersions. A failure is answered after a
delay (connection.failed.authentication.delay.ms), and closes the connection.

A session ends with the client's token, and after connections.max.reauth.ms. It must be renewed in the same way by then,
with the same mechanism and the same principal; a request after the end closes the connection.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.bounded_lines import BoundedLog
from kshare_gateway.security.sasl.configuration import SaslListener
from kshare_gateway.security.sasl.mechanism import Authenticated, SaslExchange, SaslFailure
from kshare_wire.framing import FrameReader
from kshare_wire.generated.api_keys import ApiKey

ALLOWED_BEFORE = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class SaslSession:
    """See the module docstring; `now_s` returns the seconds since 1970. `lines` are those that clients cause."""

    def __init__(self, listener: SaslListener, now_s: Callable[[], float], lines: BoundedLog) -> None:
        self._listener = listener
        self._now_s = now_s
        self._lines = lines
        self._mechanism = ""
        self._exchange: SaslExchange | None = None
        self._established: Authenticated | None = None
        self._ends_at_s: float | None = None
        self.takes_raw_messages = False
        """The next frame is a message of the mechanism, and no request."""
        self.has_failed = False

    @property
    def is_authenticated(self) -> bool:
        """False during a re-authentication, too: no other request is allowed in it."""
        return self._established is not None and self._exchange is None

    @property
    def user_name(self) -> str:
        return self._established.user_name if self._established else ""

    def limit_frames(self, frames: FrameReader, maximum_frame_length: int) -> None:
        """Before a client is authenticated, its frames are limited before they are read, to what SASL needs."""
        if self.is_authenticated:
            frames.set_limits(maximum_frame_length, "socket.request.max.bytes")
            return
        limit = min(self._listener.maximum_message_bytes, maximum_frame_length)
        config = "sasl.server.max.receive.size"
        if self.takes_raw_messages:
            frames.set_limits(limit, config, minimum_length=0)
        else:
            frames.set_limits(limit, config)

    @property
    def mechanisms(self) -> list[str]:
        """The enabled mechanisms."""
        return list(self._listener.mechanisms)

    def problem_with(self, api_key: int) -> str | None:
        """Why a request closes the connection now; None if it is allowed."""
        if self.has_failed:
            return "it sent a request after its authentication failed"
        if self.is_authenticated:
            is_over = self._ends_at_s is not None and self._now_s() > self._ends_at_s
            if is_over and api_key != ApiKey.SASL_HANDSHAKE:
                return "its session ended, and it did not authenticate again (connections.max.reauth.ms)"
            return None
        if api_key not in ALLOWED_BEFORE:
            return f"it sent a request of API {api_key} before it was authenticated"
        return None

    def choose(self, mechanism: str, *, raw: bool) -> None:
        """SaslHandshake; KafkaError."""
        if self.is_authenticated and self._ends_at_s is None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "The session has no end, so it is not renewed")
        if self._exchange is not None:
            self.has_failed = True
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake came during an authentication")
        if mechanism not in self._listener.mechanisms:
            self.has_failed = True
            text = f"Mechanism {mechanism[:100]!r} is not enabled; enabled are {', '.join(self.mechanisms)}"
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, text)
        if self._established is not None and mechanism != self._mechanism:
            self.has_failed = True
            text = f"A session of {self._mechanism} cannot be renewed with {mechanism}"
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, text)
        self._mechanism = mechanism
        self._exchange = self._listener.mechanisms[mechanism].begin()
        self.takes_raw_messages = raw

    def answer(self, message: bytes) -> bytes:
        """The server's answer to a message of the mechanism; KafkaError SASL_AUTHENTICATION_FAILED."""
        if self._exchange is None:
            self.has_failed = self._established is None
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate came without a SaslHandshake before it")
        try:
            answer = self._exchange.answer(message)
        except SaslFailure as failure:
            raise self._failed(str(failure)) from failure
        except Exception as error:  # of a library that reads what a client sent
            self._tell(error)
            raise self._failed(f"Authentication failed with SASL mechanism {self._mechanism}") from None
        if self._exchange.result is not None:
            self._complete(self._exchange.result)
        return answer

    def _tell(self, error: Exception) -> None:
        """Logs an unexpected error by its class and place: its text may have a password or token in it."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {frame.filename}:{frame.lineno}"
        text = "an authentication with %s failed with an unexpected error: %s"
        self._lines.warning("unexpected error of SASL", text, self._mechanism, place)

    def lifetime_ms(self) -> int:
        """How long the session lasts from now; 0: it has no end, or is not complete yet."""
        if not self.is_authenticated or self._ends_at_s is None:
            return 0
        return max(1, int((self._ends_at_s - self._now_s()) * 1000))

    def _complete(self, result: Authenticated) -> None:
        if self._established is not None and result.user_name != self._established.user_name:
            raise self._failed("Cannot change principals during re-authentication")
        now_s = self._now_s()
        if result.expires_at_s is not None and result.expires_at_s <= now_s:
            raise self._failed("The credential is expired")
        ends = [] if result.expires_at_s is None else [result.expires_at_s]
        maximum_ms = self._listener.mechanisms[self._mechanism].maximum_session_ms
        if maximum_ms > 0:
            ends.append(now_s + maximum_ms / 1000)
        self._ends_at_s = min(ends, default=None)
        self._established, self._exchange, self.takes_raw_messages = result, None, False

    def _failed(self, text: str) -> KafkaError:
        self.has_failed = True
        return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
