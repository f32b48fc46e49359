"""Java programs of tests: Kafka's tools and broker, and the sources in tests/java.

Starting is most of what these processes do. So they have the quick compiler only, sources are compiled once, and
Kafka's classes come from an archive (the JDK's class data sharing) where `class_archive.make` made one before.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.environment.installation import INSTALL_TIMEOUT_S, alone, cache_folder
from support.kafka.java import NEWEST, kafka_classpath, kafka_jars, require_java

SOURCES = Path(__file__).resolve().parents[2] / "java"
TIMEOUT_S = 120.0


def quick_flags(release: str = NEWEST) -> list[str]:
    """For `java`; it prints nothing of itself, as an archive that does not fit this JDK is left alone."""
    archive = archive_path(release)
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable"]
    return [*flags, f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else flags


@functools.cache
def archive_path(release: str = NEWEST) -> Path:
    """Where the classes of a Kafka are, or will be: by their jars and the JDK."""
    java = Path(shutil.which(require_java()) or "java").resolve()
    of = f"{kafka_jars(release).name} {java} {java.stat().st_mtime_ns}"
    return cache_folder() / f"kafka-classes-{hashlib.sha256(of.encode()).hexdigest()[:16]}.jsa"


def java_command(
    program: str, *arguments: str, log_level: str = "error", heap: str = "512m", flags: Sequence[str] = ()
) -> list[str]:
    """`program` is a class of Kafka, or the name of a source in tests/java."""
    class_path = kafka_classpath()
    source = SOURCES / f"{program}.java"
    if source.is_file():
        class_path = f"{class_path}:{_compiled(source)}"
    log = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    return [require_java(), *quick_flags(), f"-Xmx{heap}", log, *flags, "-cp", class_path, program, *arguments]


def run_tool(
    bootstrap: str, tool: str, *arguments: str, typed: str = "", timeout_s: float = TIMEOUT_S, fails: bool = False
) -> str:
    """What one of Kafka's tools printed, with its errors where it may fail; else AssertionError where it does."""
    command = java_command(tool, "--bootstrap-server", bootstrap, *arguments)
    result = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=timeout_s, check=False)
    if fails:
        return result.stdout + result.stderr
    assert result.returncode == 0, f"{tool} {arguments}: {result.stdout[-1500:]}{result.stderr[-3000:]}"
    return result.stdout


@functools.cache
def _compiled(source: Path) -> Path:
    """A jar with the classes of a source file; made once for each content."""
    content = hashlib.sha256(source.read_bytes() + kafka_jars().name.encode()).hexdigest()[:16]
    jar = cache_folder() / f"{source.stem}-{content}.jar"
    with alone("compile"):
        if jar.is_file():
            return jar
        folder = jar.with_suffix(f".{os.getpid()}")
        for command in (
            ["javac", "-nowarn", "-cp", kafka_classpath(), "-d", str(folder), str(source)],
            ["jar", "cf", f"{folder}.jar", "-C", str(folder), "."],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
        shutil.rmtree(folder)
        Path(f"{folder}.jar").rename(jar)
    return jar
