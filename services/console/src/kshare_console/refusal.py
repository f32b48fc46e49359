"""Refusals: what the console does not do or cannot tell, as an HTTP status, a code and words for a person."""

from __future__ import annotations

from kshare_core.errors import ErrorCode

NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
FORBIDDEN = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
UNAVAILABLE = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class Refusal(Exception):
    """An answer with an error; `code` is Kafka's name or a word of the console."""

    def __init__(self, status: int, code: str, words: str, *, question: str = "") -> None:
        super().__init__(words)
        self.status = status
        self.code = code
        self.words = words
        self.question = question
        """What to ask the person back before the action is done."""

    def body(self) -> dict[str, str]:
        found = {"error": self.words, "code": self.code}
        return found | ({"question": self.question} if self.question else {})


def bad_request(words: str) -> Refusal:
    return Refusal(400, "BAD_REQUEST", words)


def not_found(words: str) -> Refusal:
    return Refusal(404, "NOT_FOUND", words)


def forbidden(words: str) -> Refusal:
    return Refusal(403, "FORBIDDEN", words)


def unavailable(words: str) -> Refusal:
    return Refusal(503, "UNAVAILABLE", words)


def of_kafka(code: int, what: str, message: str | None = None) -> Refusal:
    """The refusal for an error code of the Kafka protocol."""
    known = ErrorCode(code) if code in ErrorCode.__members__.values() else None
    name = known.name if known is not None else f"ERROR_{code}"
    status = 400
    if known in NOT_FOUND:
        status = 404
    elif known in FORBIDDEN:
        status = 403
    elif known in UNAVAILABLE or known is None:
        status = 503
    return Refusal(status, name, f"{what}: {message or name}")


def check(code: int, what: str, message: str | None = None) -> None:
    """Raises the refusal for an error code; nothing for 0."""
    if code:
        raise of_kafka(code, what, message)
