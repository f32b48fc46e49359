"""Apache Kafka's Java clients (4.3.1), driven one step at a time: one Java process for all of them.

with JavaClients() as java:
    member = java.member(bootstrap, group, [topic], **{"max.poll.records": 5})
    records = member.take()
    member.acknowledge(records, "RENEW")
    assert member.commit_sync() == {f"{topic}-0": "ok"}

A step whose Java call threw raises JavaError with the name of its class.
"""

from __future__ import annotations

import base64
import itertools
import json
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer
from types import TracebackType
from typing import Any

from support.kafka.java_programs import java_command

STEP_TIMEOUT_S = 60.0
TAKE_TIMEOUT_S = 30.0
POLL_MS = 250


class JavaError(Exception):
    """A Java call threw; `name` is the simple name of its class."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


@dataclass(frozen=True)
class JavaRecord:
    """A record as a Java consumer returned it, or as a Java producer is to send it; times in ms."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    topic: str = ""
    partition: int = 0
    offset: int = -1
    delivery_count: int | None = None


class JavaClients:
    """The Java process; a context manager that closes all clients and ends it."""

    def __init__(self, *, flags: Sequence[str] = ()) -> None:
        self._names = map(str, itertools.count())
        command = java_command("JavaClients", flags=flags)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> JavaClients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STEP_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def step(self, do: str, **fields: Any) -> dict[str, Any]:
        """One step; the process is killed where it takes longer than a minute."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = Timer(STEP_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert line, f"the Java process ended in step {do}"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"])
        return answer

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Meanwhile the Java process stands still (SIGSTOP): no client of it sends or reads anything."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def member(self, bootstrap: str, group: str, topics: Sequence[str], **settings: Any) -> JavaMember:
        """A KafkaShareConsumer in explicit mode, or as `settings` say (underscores for dots)."""
        name = next(self._names)
        properties = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "metadata.max.age.ms": 500,
            **_dotted(settings),
        }
        self.step("openMember", name=name, settings=properties, topics=list(topics))
        return JavaMember(self, name)

    def producer(self, bootstrap: str, **settings: Any) -> JavaProducer:
        name = next(self._names)
        self.step("openProducer", name=name, settings={"bootstrap.servers": bootstrap, **_dotted(settings)})
        return JavaProducer(self, name)

    def consume(
        self, bootstrap: str, topic: str, records: int, partition: int = 0, **settings: Any
    ) -> list[JavaRecord]:
        """The first so many records of a partition, by an ordinary consumer; fewer after 20 s."""
        properties = {"bootstrap.servers": bootstrap, **_dotted(settings)}
        found = self.step("consume", settings=properties, topic=topic, partition=partition, records=records)
        return [_record_from(fields) for fields in found["records"]]

    def share_group_offsets(
        self, bootstrap: str, group: str, **settings: Any
    ) -> dict[str, tuple[int | None, int | None]]:
        """Start offset and lag of each share-partition ("topic-0") by Admin.listShareGroupOffsets."""
        properties = {"bootstrap.servers": bootstrap, **_dotted(settings)}
        found = self.step("shareGroupOffsets", settings=properties, group=group)
        return {at: (entry["startOffset"], entry["lag"]) for at, entry in found["partitions"].items()}

    def committed_offsets(self, bootstrap: str, group: str) -> dict[str, int | None]:
        """By partition ("topic-0"), from Admin.listConsumerGroupOffsets."""
        found = self.step("committedOffsets", settings={"bootstrap.servers": bootstrap}, group=group)
        partitions: dict[str, int | None] = found["partitions"]
        return partitions


class JavaMember:
    """A KafkaShareConsumer; a context manager that closes it."""

    def __init__(self, java: JavaClients, name: str) -> None:
        self._java = java
        self._name = name

    def __enter__(self) -> JavaMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._java.step("closeMember", name=self._name)

    def poll(self, ms: int = POLL_MS) -> list[JavaRecord]:
        found = self._java.step("poll", name=self._name, ms=ms)
        return [_record_from(fields) for fields in found["records"]]

    def take(self, timeout_s: float = TAKE_TIMEOUT_S) -> list[JavaRecord]:
        """Polls until a poll brings something; AssertionError after the time."""
        deadline = time.monotonic() + timeout_s
        while not (records := self.poll()):
            assert time.monotonic() < deadline, f"no record came within {timeout_s} s"
        return records

    def acknowledge(self, records: Iterable[JavaRecord], kind: str = "ACCEPT") -> None:
        """`kind` is one of AcknowledgeType's names."""
        places = [
            {"topic": record.topic, "partition": record.partition, "offset": record.offset, "type": kind}
            for record in records
        ]
        self._java.step("acknowledge", name=self._name, records=places)

    def commit_sync(self) -> dict[str, str]:
        """For each partition ("topic-0"): "ok", or the name of the exception."""
        results: dict[str, str] = self._java.step("commitSync", name=self._name)["results"]
        return results

    def commit_async(self) -> None:
        self._java.step("commitAsync", name=self._name)

    def callbacks(self) -> list[tuple[dict[str, list[int]], str | None]]:
        """What the acknowledgement commit callback was told since the last question: offsets, and an exception."""
        calls = self._java.step("callbacks", name=self._name)["calls"]
        return [(call["offsets"], call["error"]) for call in calls]

    def lock_timeout_ms(self) -> int:
        """acquisitionLockTimeoutMs(); -1 where the client does not know it yet."""
        return int(self._java.step("lockTimeoutMs", name=self._name)["lockTimeoutMs"])


class JavaProducer:
    """A KafkaProducer of bytes."""

    def __init__(self, java: JavaClients, name: str) -> None:
        self._java = java
        self._name = name

    def send(self, topic: str, records: Sequence[JavaRecord], partition: int = 0) -> list[int | str]:
        """Sends and waits for all: the offset of each, or the name of the exception."""
        fields = [
            {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[key, _text(value)] for key, value in record.headers],
                "timestamp": record.timestamp_ms,
            }
            for record in records
        ]
        found = self._java.step("send", name=self._name, topic=topic, partition=partition, records=fields)
        return [result.get("error", result.get("offset")) for result in found["results"]]

    def transaction(self, step: str) -> None:
        """`step` is one of "init", "begin", "commit" and "abort"."""
        self._java.step(f"{step}Transaction{'s' if step == 'init' else ''}", name=self._name)

    def send_offsets(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        """sendOffsetsToTransaction with the metadata of a group without members."""
        places = [{"topic": topic, "partition": number, "offset": at} for (topic, number), at in offsets.items()]
        self._java.step("sendOffsets", name=self._name, group=group, offsets=places)

    def close(self) -> None:
        self._java.step("closeProducer", name=self._name)


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "."): value for key, value in settings.items()}


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _record_from(fields: dict[str, Any]) -> JavaRecord:
    return JavaRecord(
        value=_bytes(fields["value"]),
        key=_bytes(fields["key"]),
        headers=tuple((key, _bytes(value)) for key, value in fields["headers"]),
        timestamp_ms=fields["timestamp"],
        topic=fields["topic"],
        partition=fields["partition"],
        offset=fields["offset"],
        delivery_count=fields["deliveryCount"],
    )
