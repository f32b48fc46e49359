"""The first look at a cluster: every command that goes there begins with it.

It ends within `ANSWER_LIMIT_S`, whatever is at the address, and at the first Ctrl-C: librdkafka and the C library's
look-up of names would make the user wait longer, and do not hear an interrupt.
"""

from __future__ import annotations

import difflib
import queue
import threading

from kshare.addresses import parse_address
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import ConnectionFailed, read_metadata
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic

ANSWER_LIMIT_S = 2.0

Outcome = MetadataResponse | BaseException


def reach(
    bootstrap: str, properties: Properties = NO_PROPERTIES, *, answer_limit_s: float = ANSWER_LIMIT_S
) -> MetadataResponse:
    """Brokers and topics of the cluster; ConnectionFailed where nothing answers in time."""
    address = parse_address(bootstrap, what="--bootstrap")
    outcomes: queue.Queue[Outcome] = queue.Queue(1)

    def ask() -> None:
        try:
            outcomes.put(read_metadata(address, timeout_s=2 * answer_limit_s, properties=properties))
        except BaseException as problem:  # handed to the thread that waits
            outcomes.put(problem)

    threading.Thread(target=ask, daemon=True).start()
    try:
        outcome = outcomes.get(timeout=answer_limit_s)
    except queue.Empty:
        raise ConnectionFailed(
            f"nothing answers at {address} within {answer_limit_s:g} s; is this a gateway?"
        ) from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def topic_of(metadata: MetadataResponse, name: str) -> MetadataResponseTopic:
    """The topic of this name; CommandFailed where there is none, with names that are like it."""
    topics = {str(topic.name): topic for topic in metadata.topics}
    if name not in topics:
        near = difflib.get_close_matches(name, topics, n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; kshare topics create {name} makes it"
        raise CommandFailed(f"there is no topic {name}{hint}", BAD_USE)
    return topics[name]
