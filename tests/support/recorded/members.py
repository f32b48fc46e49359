"""Members of a share group in processes of their own: they tell every delivery and every acknowledgement.

An event is written to a pipe before the member goes on, so that what a killed member may have done is known.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from confluent_kafka import AcknowledgeType as ClientType
from confluent_kafka import KafkaException, ShareConsumer

from kshare_core.states import AcknowledgeType
from support.simulation.history import AcknowledgeAnswered, AcknowledgeSent, Delivered

POLL_S = 0.2
COMMIT_TIMEOUT_S = 60.0
CLOSED_WITHIN_S = 60.0
RELEASED_EVERY, REJECTED_EVERY = 5, 97
_CONTEXT = multiprocessing.get_context("spawn")
_TYPES = {
    AcknowledgeType.ACCEPT: ClientType.ACCEPT,
    AcknowledgeType.RELEASE: ClientType.RELEASE,
    AcknowledgeType.REJECT: ClientType.REJECT,
}

MemberEvent = Delivered | AcknowledgeSent | AcknowledgeAnswered


@dataclass(frozen=True, slots=True)
class MemberTask:
    """What one life of a member does; `name` is that of the life."""

    bootstrap: str
    topic: str
    group: str
    name: str
    first_acknowledge_id: int
    settings: dict[str, str] = field(default_factory=dict)


def decision_of(offset: int, delivery_count: int) -> AcknowledgeType:
    """What a member says of a record: of every fifth it first wants another delivery, and some it rejects."""
    if offset % RELEASED_EVERY == 0 and delivery_count == 1:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.REJECT if offset % REJECTED_EVERY == 0 else AcknowledgeType.ACCEPT


def _work(task: MemberTask, pipe: Connection) -> None:
    settings = {"share.acknowledgement.mode": "explicit", "log_level": 0, **task.settings}
    consumer: Any = ShareConsumer({"bootstrap.servers": task.bootstrap, "group.id": task.group, **settings})
    consumer.subscribe([task.topic])
    acknowledge_id = task.first_acknowledge_id
    while not pipe.poll():
        polled_at = time.monotonic()
        try:
            messages = [message for message in consumer.poll(POLL_S) if message.error() is None]
        except KafkaException:
            continue
        if not messages:
            continue
        came_at = time.monotonic()
        sent = [_acknowledged(consumer, task, message, acknowledge_id + at) for at, message in enumerate(messages)]
        acknowledge_id += len(messages)
        pipe.send([*[_delivered(task, message, polled_at, came_at) for message in messages], *sent])
        if answers := _committed(consumer, sent):
            pipe.send(answers)
    with suppress(KafkaException):
        consumer.close()


def _delivered(task: MemberTask, message: Any, polled_at: float, came_at: float) -> Delivered:
    return Delivered(
        time=came_at,
        sent_at=polled_at,
        group=task.group,
        member=task.name,
        gateway="",
        partition=message.partition(),
        run=(message.offset(), message.offset()),
        delivery_count=message.delivery_count(),
        values=(message.value().decode(),),
    )


def _acknowledged(consumer: Any, task: MemberTask, message: Any, acknowledge_id: int) -> AcknowledgeSent:
    """Notes it with the client, which sends it with the next commit."""
    decision = decision_of(message.offset(), message.delivery_count())
    consumer.acknowledge(message, _TYPES[decision])
    run = (message.offset(), message.offset())
    return AcknowledgeSent(
        time.monotonic(), acknowledge_id, task.group, task.name, message.partition(), run, int(decision)
    )


def _committed(consumer: Any, sent: Sequence[AcknowledgeSent]) -> list[AcknowledgeAnswered]:
    """The answers; none of a partition whose acknowledgements the client could not send, or got no answer to."""
    try:
        results = consumer.commit_sync(COMMIT_TIMEOUT_S)
    except KafkaException:
        return []
    now = time.monotonic()
    codes = {at.partition: 0 if error is None else int(error.args[0].code()) for at, error in results.items()}
    return [
        AcknowledgeAnswered(now, one.acknowledge_id, codes[one.partition])
        for one in sent
        if codes.get(one.partition, -1) >= 0  # below 0: an error of the client's own
    ]


class Members:
    """Starts `count` members on entry. Each place, from 0, has one member at a time; a new life has a new name."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, count: int, settings: dict[str, str] | None = None
    ) -> None:
        self._bootstrap, self._topic, self._group, self._count = bootstrap, topic, group, count
        self._settings = settings or {}
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Connection] = {}
        self._lives = 0
        self.events: list[MemberEvent] = []
        self.started_at: dict[str, float] = {}
        """When each life began."""
        self.came: dict[int, int] = {}
        """How many records came to the present member of each place that has one."""

    def __enter__(self) -> Members:
        for place in range(self._count):
            self.start(place)
        return self

    def __exit__(self, *_: object) -> None:
        for place in self.places:
            self.kill(place)

    @property
    def places(self) -> list[int]:
        """Those that have a member now."""
        return list(self._processes)

    def start(self, place: int) -> None:
        self._lives += 1
        name = f"member-{place}.{self._lives}"
        here, there = _CONTEXT.Pipe()
        task = MemberTask(
            self._bootstrap, self._topic, self._group, name, self._lives * 10_000_000, dict(self._settings)
        )
        process = _CONTEXT.Process(target=_work, args=(task, there), daemon=True, name=name)
        self.started_at[name] = time.monotonic()
        process.start()
        there.close()
        self._processes[place], self._pipes[place], self.came[place] = process, here, 0

    def stop(self, place: int) -> None:
        """A clean end: the member leaves its group and gives back what it holds. AssertionError where it does not."""
        process, pipe = self._processes.pop(place), self._pipes.pop(place)
        pipe.send("stop")
        deadline = time.monotonic() + CLOSED_WITHIN_S
        while process.is_alive() and time.monotonic() < deadline:
            self._read(pipe, place)
            process.join(0.02)
        assert not process.is_alive(), f"{process.name} did not close within {CLOSED_WITHIN_S} s"
        self._read(pipe, place)
        del self.came[place]

    def kill(self, place: int) -> None:
        """SIGKILL in the middle of whatever it does."""
        process, pipe = self._processes.pop(place), self._pipes.pop(place)
        process.kill()
        process.join()
        self._read(pipe, place)
        del self.came[place]

    def take(self, timeout_s: float) -> None:
        """Reads what members sent, until `timeout_s` passed."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            places = {pipe: place for place, pipe in self._pipes.items()}
            if not places:
                return
            for ready in wait(list(places), left):
                assert isinstance(ready, Connection)
                self._read(ready, places[ready])

    def _read(self, pipe: Connection, place: int) -> None:
        # A member that was killed may have sent a part of an event: then it did not do what comes after it.
        with suppress(EOFError, ConnectionResetError):
            while pipe.poll():
                events = pipe.recv()
                self.events.extend(events)
                self.came[place] += sum(isinstance(event, Delivered) for event in events)
