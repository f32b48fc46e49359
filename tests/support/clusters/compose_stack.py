"""docker-compose.yml as a project of its own, with clients outside of the containers, for tests.

Compose is driven by testcontainers. The images are built from this working tree. Where the Docker daemon is the tests'
own, the data of the roles lies in memory (`support.environment.memory_folder`): tests measure pauses in seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from testcontainers.compose import DockerCompose

from support.clients.delivery import wait_for
from support.environment.docker import ROOT, debian_image, docker, has_own_daemon, images, kafka_image
from support.environment.free_ports import free_port
from support.environment.memory_folder import memory_folder

START_TIMEOUT_S = 180
VOLUMES_OF_ROLES = ("coordinator", "share-coordinators", "leaders", "kafka")
ATTACHED_GATEWAY = "attached-gateway"
"""The service of the profile `kafka` that depends on all others of it."""


class Stack:
    """The compose project of a test; `bootstraps` are its gateways as seen from outside.

    `services` are those that `up` names, with the services on which they depend; none: all without a profile.
    """

    def __init__(self, environment: dict[str, str], services: Sequence[str] = ()) -> None:
        self.environment = environment
        self._services = services
        self.bootstraps = [f"127.0.0.1:{environment[name]}" for name in ("KSHARE_PORT_1", "KSHARE_PORT_2")]
        self.attached = f"127.0.0.1:{environment['KSHARE_PORT']}"
        """The gateway of the profile `kafka`, and the Apache Kafka that is behind it."""
        self.kafka = f"127.0.0.1:{environment['KAFKA_PORT']}"

    def compose(self, *arguments: str, timeout_s: float = START_TIMEOUT_S) -> str:
        return docker("compose", *arguments, environment=self.environment, timeout_s=timeout_s)

    def containers(self, service: str) -> list[str]:
        """Their names."""
        lines = self.compose("ps", "--all", "--format", "json", service).splitlines()
        return sorted(json.loads(line)["Name"] for line in lines)

    def kill(self, container: str) -> None:
        """As a crash: the process gets no word of it."""
        docker("kill", container, environment=self.environment)

    def start(self, container: str) -> None:
        docker("start", container, environment=self.environment)

    def restart(self, container: str) -> float:
        """Returns when it is healthy; in how many seconds its process ended and the new one was begun."""
        began = time.monotonic()
        docker("restart", "--time", "30", container, environment=self.environment)
        away_s = time.monotonic() - began
        self.wait_until_healthy(container)
        return away_s

    def wait_until_healthy(self, container: str) -> None:
        """As `up --wait` does: Docker says "starting" until the first health check, 5 s after each start.

        A container without health checks, as Prometheus, counts as healthy.
        """
        shown = "{{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}}"
        health = ("inspect", "--format", shown, container)
        with self._health_checks_in_failures():
            wait_for(
                lambda: docker(*health, environment=self.environment).strip() == "healthy",
                f"{container} is healthy",
                60,
            )

    @contextmanager
    def _health_checks_in_failures(self) -> Iterator[None]:
        """Adds to an AssertionError the last health checks of every container, with what they printed."""
        try:
            yield
        except AssertionError as failure:
            shown = ("inspect", "--format", "{{.Name}} {{json .State.Health}}")
            containers = self.compose("ps", "--format", "{{.Name}}").split()
            failure.add_note(docker(*shown, *containers, environment=self.environment))
            raise

    def replace(self, *services: str) -> None:
        """Their containers are removed at once, without a word to the processes, and made anew.

        `up --wait` would give up as soon as a container is unhealthy, as those that miss the removed ones are.
        """
        containers = [container for service in services for container in self.containers(service)]
        docker("rm", "--force", *containers, environment=self.environment)
        self.compose("up", "--detach", "--no-build", "--no-deps", *services)

    def kshare(self, *arguments: str) -> str:
        return self.compose("run", "--rm", "--no-deps", "-T", "kshare", *arguments)

    def down_and_up(self) -> None:
        """All containers are removed and made anew; the volumes stay."""
        self.compose("down", "--timeout", "30")
        self.compose("up", "--detach", "--wait", "--no-build", *self._services)

    def cluster_problem(self, container: str) -> str:
        """What the health check of a gateway's container says; empty where the cluster can serve."""
        return self._probe(container, "--cluster")

    def role_problem(self, container: str) -> str:
        """What the health check of a role's container says now; empty where it does its own work.

        Docker's own word is that of its last checks, which a busy machine may have cut off after 5 s.
        """
        return self._probe(container)

    def _probe(self, container: str, *options: str) -> str:
        command = ("docker", "exec", container, "python", "-m", "kshare_servicekit.probe", *options)
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
        )
        assert (done.returncode == 0) is (done.stderr == ""), done
        return done.stderr

    def scale(self, service: str, count: int) -> None:
        """Without touching the other services, after all containers are healthy.

        `up --wait` would give up on one that Docker still calls unhealthy: a leader whose coordinator was away, until
        its next health check, or any on a machine that was too busy for three checks of 5 s.
        """
        for container in self.compose("ps", "--format", "{{.Name}}").split():
            self.wait_until_healthy(container)
        scale = ("--scale", f"{service}={count}")
        with self._health_checks_in_failures():
            self.compose("up", "--detach", "--wait", "--no-recreate", "--no-build", *scale, *self._services)

    def loads(self) -> list[int]:
        """How many state partitions each share coordinator has, the fewest first."""
        return sorted(int(row[2]) for row in rows(self.kshare("state", "partitions")) if row[1] in ("live", "draining"))

    def node_ids(self) -> dict[str, int]:
        """Of the share coordinators, by container."""
        return {container: self._node_id(container) for container in self.containers("share-coordinator")}

    def _node_id(self, container: str) -> int:
        variables = docker("exec", container, "cat", "/proc/1/environ", environment=self.environment).split("\0")
        return int(next(text for text in variables if text.startswith("KSHARE_NODE_ID=")).partition("=")[2])


def rows(table: str) -> list[list[str]]:
    """The cells of the lines of a table that the kshare command printed."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line]


def volumes_in(folder: Path) -> str:
    """The path of a compose file that puts the volumes of the roles into folders there."""
    volumes = {}
    for name in VOLUMES_OF_ROLES:
        place = folder / name
        place.mkdir()
        place.chmod(0o777)  # the roles do not run as root
        volumes[name] = {"driver_opts": {"type": "none", "o": "bind", "device": str(place)}}
    file = folder / "volumes.json"
    file.write_text(json.dumps({"volumes": volumes}))
    return str(file)


@contextmanager
def running_stack(
    files: Sequence[str] = ("docker-compose.yml",),
    variables: Mapping[str, str] | None = None,
    services: Sequence[str] = (),
) -> Iterator[Stack]:
    """Started from these files; `variables` are what they take from the environment. `services`: see Stack."""
    environment, tag = images()
    with ExitStack() as entered:
        if has_own_daemon(environment):
            files = [*files, volumes_in(entered.enter_context(memory_folder()))]
        yield from _running_stack(files, environment, tag, variables or {}, services)


@contextmanager
def attached_stack() -> Iterator[Stack]:
    """The profile `kafka`: an Apache Kafka without share groups, and the roles in front of it."""
    variables = {"KAFKA_IMAGE": kafka_image(), "COMPOSE_PROFILES": "kafka"}
    with running_stack(variables=variables, services=[ATTACHED_GATEWAY]) as stack:
        yield stack


def _running_stack(
    files: Sequence[str],
    environment: Mapping[str, str],
    tag: str,
    variables: Mapping[str, str],
    services: Sequence[str],
) -> Iterator[Stack]:
    environment = {
        **environment,
        **variables,
        "COMPOSE_FILE": ":".join(files),
        "COMPOSE_PROJECT_NAME": f"kshare-test-{os.getpid()}",
        "KSHARE_TAG": tag,
        "KSHARE_PORT_1": str(free_port()),
        "KSHARE_PORT_2": str(free_port()),
        "KSHARE_PORT": str(free_port()),
        "KAFKA_PORT": str(free_port()),
        "KSHARE_ADVERTISED_HOST": "127.0.0.1",
        "PROMETHEUS_IMAGE": debian_image("prometheus"),
        "PROMETHEUS_PORT": str(free_port()),
    }
    before = dict(os.environ)
    os.environ.update(environment)  # testcontainers hands the process's own on
    stack = Stack(environment, services)
    compose = DockerCompose(
        str(ROOT), compose_file_name=list(files), pull=False, build=False, wait=True, services=list(services) or None
    )
    try:
        compose.start()
        yield stack
    except BaseException:
        print(stack.compose("logs", "--tail", "40"))
        raise
    finally:
        profiles = [word for name in ("tools", "observability", "pipeline", "kafka") for word in ("--profile", name)]
        stack.compose(*profiles, "down", "--volumes", "--timeout", "20")
        os.environ.clear()
        os.environ.update(before)
