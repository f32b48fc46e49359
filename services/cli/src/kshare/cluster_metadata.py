"""The metadata request with which every command on a cluster begins.

It ends within `ANSWER_LIMIT_S`, whatever listens at the address, and at the first Ctrl-C. librdkafka and the C
library's name resolution block for longer and cannot be interrupted.
"""

from __future__ import annotations

import difflib
import queue
import threading
import time

from kshare.addresses import Address, parse_addresses
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import ConnectionFailed, read_metadata
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic

ANSWER_LIMIT_S = 2.0
NEXT_STEP = "; start kshare up, or name a gateway that runs with --bootstrap HOST:PORT; kshare doctor looks closer"
INTERRUPT_HEARD_WITHIN_S = 0.1

Outcome = MetadataResponse | BaseException


class Unreachable(ConnectionFailed):
    """Nothing listens at the addresses. `problem` is the text without the advice, which suits --bootstrap only."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}{NEXT_STEP}")
        self.problem = problem


def reach(
    bootstrap: str, properties: Properties = NO_PROPERTIES, *, answer_limit_s: float = ANSWER_LIMIT_S
) -> MetadataResponse:
    """Brokers and topics of the cluster; ConnectionFailed if there is no response in time, Unreachable at once.

    `bootstrap` may be a list with commas, as in Kafka. All of its addresses are asked; the first metadata is taken.
    """
    addresses = parse_addresses(bootstrap, what="--bootstrap")
    outcomes: queue.Queue[Outcome] = queue.Queue()

    def ask(address: Address) -> None:
        try:
            outcomes.put(read_metadata(address, timeout_s=2 * answer_limit_s, properties=properties))
        except BaseException as problem:  # raised again in the waiting thread
            outcomes.put(problem)

    for address in addresses:
        threading.Thread(target=ask, args=(address,), daemon=True).start()
    deadline = time.monotonic() + answer_limit_s
    problem: BaseException | None = None
    for _ in addresses:
        outcome = _first(outcomes, deadline - time.monotonic())
        if isinstance(outcome, MetadataResponse):
            return outcome
        problem = outcome or problem
    if problem is None:
        raise ConnectionFailed(
            f"no response from {bootstrap} within {answer_limit_s:g} s; check that this is a gateway's address"
        )
    if isinstance(problem, ConnectionFailed) and str(problem).startswith("cannot connect"):
        raise Unreachable(str(problem))
    raise problem


def _first(outcomes: queue.Queue[Outcome], limit_s: float) -> Outcome | None:
    """The outcome, None if there is none within `limit_s`.

    The wait is in slices: a Ctrl-C that another thread takes, or that arrives just before a wait begins, does not end
    that wait. Python raises KeyboardInterrupt in the main thread at its next instruction.
    """
    deadline = time.monotonic() + limit_s
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            return outcomes.get(timeout=min(left_s, INTERRUPT_HEARD_WITHIN_S))
        except queue.Empty:
            continue
    return None


def topic_of(
    metadata: MetadataResponse, name: str, *, otherwise: str = "create it with kshare topics create {name}"
) -> MetadataResponseTopic:
    """The topic of this name; CommandFailed if it does not exist, with similar names, or with what to do."""
    topics = {str(topic.name): topic for topic in metadata.topics}
    if name not in topics:
        near = difflib.get_close_matches(name, topics, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else otherwise.format(name=name)
        raise CommandFailed(f"topic {name} does not exist; {hint}", BAD_USE)
    return topics[name]
