"""Java and Apache Kafka's jars for tests and benchmarks.

`kafka_classpath()` returns a class path with Kafka 4.3.1's clients, broker and tools. What is missing is installed:
Java and Maven by apt-get where this runs as root on Debian, the jars by Maven from Maven Central into the user's cache.
Where that is not possible, MissingJava says what to install.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from support.installation import alone, cache_folder

POM = Path(__file__).resolve().parent.parent / "java/pom.xml"
SPARK_KAFKA_POM = POM.with_name("spark-kafka-pom.xml")
INSTALL_TIMEOUT_S = 600


class MissingJava(RuntimeError):
    """Java 17 or Maven is not here and could not be installed; the text says what to do."""


def require_java() -> str:
    """The path of `java`; installs a JDK and Maven where they are missing and that is possible."""
    with alone():
        return _require_java()


def _require_java() -> str:
    if shutil.which("java") and shutil.which("javac") and shutil.which("mvn"):
        return str(shutil.which("java"))
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingJava("this test needs java (17 or later), javac and mvn on the PATH")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "openjdk-17-jdk-headless", "maven"]):
        result = subprocess.run(
            ["apt-get", "-q", *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            raise MissingJava(f"apt-get {' '.join(command)} failed: {result.stderr[-2000:]}")
    found = shutil.which("java")
    if not found:
        raise MissingJava("apt-get installed openjdk-17-jdk-headless, but there is still no java on the PATH")
    return found


def kafka_jars() -> Path:
    """A folder with Kafka's jars; filled once for each content of pom.xml."""
    with alone():
        _require_java()
        return _jars(POM, "kafka-jars")


def spark_kafka_jars() -> list[Path]:
    """Spark's own Kafka source and what it needs beside Spark."""
    with alone():
        _require_java()
        return sorted(_jars(SPARK_KAFKA_POM, "spark-kafka-jars").iterdir())


def _jars(pom: Path, name: str) -> Path:
    folder = cache_folder() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    result = subprocess.run(
        [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={fresh}",
        ],
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if result.returncode:
        raise MissingJava(f"Maven could not fetch the jars of {pom.name}: {(result.stdout + result.stderr)[-2000:]}")
    try:
        fresh.rename(folder)
    except OSError:  # another process was quicker
        shutil.rmtree(fresh)
    return folder


def kafka_classpath() -> str:
    """The class path with Apache Kafka 4.3.1."""
    return f"{kafka_jars()}/*"
