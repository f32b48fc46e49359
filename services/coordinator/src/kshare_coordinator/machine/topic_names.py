"""Which topic names are legal (org.apache.kafka.common.internals.Topic)."""

from __future__ import annotations

import re

from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode, KafkaError

NAME_LENGTH_LIMIT = 249
METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = ("__consumer_offsets", "__share_group_state", "__transaction_state", METADATA_TOPIC, HISTORY_TOPIC)
OF_ROLES = (HISTORY_TOPIC,)
"""Internal topics that are topics of the catalog, made by a role. Administrators may alter their configs."""
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str, *, internal: bool = False) -> None:
    """KafkaError where no topic may have the name, or where only the system may create it.

    `internal`: a role asks, for a topic of its own.
    """
    problem = None
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = "it must not be '.' or '..'"
    elif len(name) > NAME_LENGTH_LIMIT:
        problem = f"it has {len(name)} characters, at most {NAME_LENGTH_LIMIT} are allowed"
    elif not _LEGAL.fullmatch(name):
        problem = "only ASCII letters, digits, '.', '_' and '-' are allowed"
    if problem:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name {name[:300]!r} is illegal: {problem}")
    if not internal:
        check_not_internal(name, "created")
    elif name not in OF_ROLES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Topic {name} is not an internal topic of a role; {', '.join(OF_ROLES)} is"
        )


def check_not_internal(name: str, participle: str) -> None:
    if name in INTERNAL_TOPICS:
        text = f"Topic {name} is internal and cannot be {participle} by clients"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
