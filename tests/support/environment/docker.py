"""A Docker daemon and kshare's images for tests.

A working DOCKER_HOST (or the default socket) is used as it is. Else ../shared/docker, where it is there, brings a
daemon and a base image without a container registry; it is started for the whole test run and left running. Where
neither is possible, the tests are skipped and say why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from support.environment.installation import alone, user_cache
from support.environment.unavailable import unavailable
from support.kafka.java import WITHOUT_SHARE_GROUPS, kafka_jars

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "docker"
LOCAL_BASE_IMAGE = "kshare/base:bookworm"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
TARGETS = ("coordinator", "share-coordinator", "leader", "gateway", "cli")
TAG = "test"
BUILD_TIMEOUT_S = 900


def docker(*arguments: str, environment: Mapping[str, str], timeout_s: float = 120) -> str:
    """What the command printed; AssertionError where it fails."""
    result = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, f"docker {' '.join(arguments)}: {result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout


@cache
def docker_environment() -> dict[str, str]:
    """The environment for `docker`; `unavailable` where there is no daemon and none can be started."""
    with alone("docker"):
        environment = dict(os.environ)
        if shutil.which("docker") and _works(environment):
            return environment
        return _own_daemon(environment)


def own_daemon_address() -> str:
    """Where the daemon of ../shared/docker listens."""
    return f"unix://{user_cache()}/kshare-docker/docker.sock"


def has_own_daemon(environment: Mapping[str, str]) -> bool:
    """Whether this environment's daemon was started by the tests; its containers can then mount the tests' folders."""
    return environment.get("DOCKER_HOST") == own_daemon_address()


def _own_daemon(environment: dict[str, str]) -> dict[str, str]:
    if not SHARED.exists() or os.geteuid() != 0:
        unavailable("no Docker daemon answers (DOCKER_HOST), and ../shared/docker with root to start one is not here")
    for command in ([str(SHARED / "build")], [str(SHARED / "dockerd.sh"), "start"]):
        _run_to_the_end(command)
    environment["DOCKER_HOST"] = own_daemon_address()
    environment["BASE_IMAGE"] = LOCAL_BASE_IMAGE
    environment["KSHARE_CA_FILE"] = str(CA_BUNDLE)
    if not _works(environment):
        unavailable("the daemon of ../shared/docker does not answer")
    return environment


def _run_to_the_end(command: list[str]) -> None:
    """Its output goes to a file: the daemon that it starts keeps what it inherited open, so a pipe would never end."""
    with tempfile.TemporaryFile("w+") as output:
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=BUILD_TIMEOUT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            unavailable(f"{' '.join(command)} did not bring up Docker here within {BUILD_TIMEOUT_S} s")
        if code != 0:
            output.seek(0)
            unavailable(f"{' '.join(command)} cannot bring up Docker here: {output.read().strip()[-500:]}")


def _works(environment: Mapping[str, str]) -> bool:
    done = subprocess.run(["docker", "info"], env=dict(environment), capture_output=True, timeout=60, check=False)
    return done.returncode == 0


@cache
def images() -> tuple[dict[str, str], str]:
    """Builds the images that the small set needs, from this working tree; the environment for `docker`, and the tag."""
    environment = docker_environment()
    for target in TARGETS:
        image(target)
    return environment, TAG


@cache
def image(target: str) -> str:
    """One target of the Dockerfile from this working tree; the image's name."""
    environment, name = docker_environment(), f"kshare/{target}:{TAG}"
    with alone("docker"):
        _build("deploy/images/Dockerfile", name, environment, "--target", target)
    return name


@cache
def debian_image(name: str) -> str:
    """Of "prometheus" or "etcd": what PROMETHEUS_IMAGE or ETCD_IMAGE names, or one built from Debian's package."""
    environment = docker_environment()
    if given := environment.get(f"{name.upper()}_IMAGE"):
        return given
    with alone("docker"):
        _build(f"deploy/images/{name}.Dockerfile", f"kshare/{name}:test", environment)
    return f"kshare/{name}:test"


@cache
def kafka_image() -> str:
    """An Apache Kafka without share groups: what KAFKA_IMAGE names, or one built from Maven Central's jars."""
    environment = docker_environment()
    if given := environment.get("KAFKA_IMAGE"):
        return given
    jars, name = kafka_jars(WITHOUT_SHARE_GROUPS), f"kshare/kafka:{WITHOUT_SHARE_GROUPS}"
    with alone("docker"), tempfile.TemporaryDirectory() as context:
        shutil.copytree(jars, Path(context) / "jars")
        shutil.copy(ROOT / "deploy/images/kafka.sh", context)
        _build("deploy/images/kafka.Dockerfile", name, environment, context=context)
    return name


def _build(file: str, name: str, environment: Mapping[str, str], *arguments: str, context: str = ".") -> None:
    command = ["build", "--quiet", "--file", file, "--tag", name, *arguments]
    if "BASE_IMAGE" in environment:
        command += ["--build-arg", f"BASE_IMAGE={environment['BASE_IMAGE']}"]
    if "KSHARE_CA_FILE" in environment:
        command += ["--secret", f"id=ca,src={environment['KSHARE_CA_FILE']}"]
    docker(*command, context, environment={**environment, "DOCKER_BUILDKIT": "1"}, timeout_s=BUILD_TIMEOUT_S)
