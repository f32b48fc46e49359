"""Java and Apache Kafka's jars for tests and benchmarks.

`kafka_classpath()` returns a class path with Kafka 4.3.1's clients, broker and tools, or with those of Kafka 3.9.1,
which has no share groups. What is missing is installed: Java and Maven by apt-get where this runs as root on Debian,
the jars by Maven from Maven Central into the user's cache. Where that is not possible, Missing says what to install.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from support.environment.installation import INSTALL_TIMEOUT_S, Missing, alone, cache_folder, debian_program

POM = Path(__file__).resolve().parents[2] / "java/pom.xml"
POMS = {"4.3.1": POM, "3.9.1": POM.with_name("kafka-3.9-pom.xml"), "2.8.2": POM.with_name("kafka-2.8-pom.xml")}
NEWEST, WITHOUT_SHARE_GROUPS, OLDEST = "4.3.1", "3.9.1", "2.8.2"
SPARK_KAFKA_POM = POM.with_name("spark-kafka-pom.xml")


def require_java() -> str:
    """The path of `java`; installs a JDK and Maven where they are missing and that is possible."""
    with alone():
        return _require_java()


def _require_java() -> str:
    for program in ("javac", "mvn"):
        debian_program([program], "openjdk-17-jdk-headless", "maven")
    return debian_program(["java"], "openjdk-17-jdk-headless")


def kafka_jars(release: str = NEWEST) -> Path:
    """A folder with Kafka's jars; filled once for each content of the release's pom.xml."""
    with alone():
        _require_java()
        return _jars(POMS[release], "kafka-jars")


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
        raise Missing(f"Maven could not fetch the jars of {pom.name}: {(result.stdout + result.stderr)[-2000:]}")
    try:
        fresh.rename(folder)
    except OSError:  # another process was quicker
        shutil.rmtree(fresh)
    return folder


def kafka_classpath(release: str = NEWEST) -> str:
    """The class path with Apache Kafka of a release, one of POMS."""
    return f"{kafka_jars(release)}/*"
