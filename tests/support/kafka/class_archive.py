"""Makes the archives of Kafka's classes that `java_programs` starts Java with: `make()`, half a minute each, once.

A broker, clients and some tools run once and write down which classes they load; the JDK then puts those classes into
one file (`java -Xshare:dump`). Of a Kafka without share groups only the broker runs in tests.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from support.clients.administration import create_topic
from support.environment.installation import INSTALL_TIMEOUT_S, alone
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.java import NEWEST, WITHOUT_SHARE_GROUPS, kafka_classpath, require_java
from support.kafka.java_clients import JavaClients
from support.kafka.java_programs import TIMEOUT_S, archive_path, java_command

TOPIC, GROUP = "topic", "group"
TOOLS: tuple[tuple[str, ...], ...] = (
    ("org.apache.kafka.tools.TopicCommand", "--describe"),
    ("org.apache.kafka.tools.consumer.group.ShareGroupCommand", "--list"),
    ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--all-groups"),
    ("org.apache.kafka.tools.TransactionsCommand", "list"),
    ("kafka.admin.ConfigCommand", "--describe", "--entity-type", "topics"),
    ("org.apache.kafka.tools.VerifiableProducer", "--topic", TOPIC, "--max-messages", "1"),
    ("org.apache.kafka.tools.VerifiableConsumer", "--topic", TOPIC, "--group-id", GROUP, "--max-messages", "1"),
)


def make_of_existing_clusters() -> Path:
    """The archive of the Kafka that has no share groups."""
    return make(WITHOUT_SHARE_GROUPS)


def make(release: str = NEWEST) -> Path:
    """The archive; made where it is missing."""
    archive = archive_path(release)
    with alone("class-archive"):
        if archive.is_file():
            return archive
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _note_classes(folder, release)
            lists = sorted(folder.glob("*.classes"))
            together = folder / "all.txt"
            together.write_text("".join(f"{line}\n" for line in _merged(lists)))
            fresh = archive.with_suffix(f".{os.getpid()}")
            dump = ["-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedClassListFile={together}", "-Xlog:disable"]
            subprocess.run(
                [require_java(), *dump, f"-XX:SharedArchiveFile={fresh}", "-cp", kafka_classpath(release)],
                check=True,
                capture_output=True,
                timeout=INSTALL_TIMEOUT_S,
            )
        fresh.rename(archive)
    return archive


def _note_classes(folder: Path, release: str) -> None:
    def noting(name: str) -> list[str]:
        return [f"-XX:DumpLoadedClassList={folder / name}.classes"]

    with ApacheKafka(folder / "kafka", quick=True, flags=noting("broker"), release=release) as kafka:
        create_topic(kafka.bootstrap, TOPIC, 1)
        if release != NEWEST:
            return
        for number, (tool, *arguments) in enumerate(TOOLS):
            command = java_command(tool, "--bootstrap-server", kafka.bootstrap, *arguments, flags=noting(str(number)))
            subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        with JavaClients(flags=noting("clients")) as java:
            java.member(kafka.bootstrap, GROUP + "-share", [TOPIC]).close()


def _merged(lists: Iterable[Path]) -> list[str]:
    """Classes of the JDK and of the class path; the numbers, which only other loaders' classes need, differ."""
    lines = (line for each in lists for line in each.read_text().splitlines())
    return sorted({line.partition(" id:")[0] for line in lines if not line.startswith("#") and " source:" not in line})
