"""docker-compose.yml as its users start it: clients outside of the containers, containers that die, and scaling.

Compose is driven by testcontainers. The images are built from this working tree.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from testcontainers.compose import DockerCompose

from support.administration import create_topic, read_from_earliest
from support.apache_kafka import free_port
from support.delivery import wait_for
from support.docker import ROOT, docker, images
from support.workload import WorkerPool, WorkerTask, produce_numbered

PARTITIONS = 12
STEP = 600
STATE_PARTITIONS = 50
START_TIMEOUT_S = 180


class Stack:
    """The compose project of a test; `bootstraps` are its gateways as seen from outside."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.bootstraps = [f"127.0.0.1:{environment[name]}" for name in ("KSHARE_PORT_1", "KSHARE_PORT_2")]

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

    def kshare(self, *arguments: str) -> str:
        return self.compose("run", "--rm", "--no-deps", "-T", "kshare", *arguments)

    def scale(self, service: str, count: int) -> None:
        """Without touching the other services."""
        self.compose("up", "--detach", "--wait", "--no-recreate", "--no-build", "--scale", f"{service}={count}")

    def loads(self) -> list[int]:
        """How many state partitions each share coordinator has, the fewest first."""
        return sorted(int(row[2]) for row in rows(self.kshare("state", "partitions")) if row[1] in ("live", "draining"))

    def node_ids(self) -> dict[str, int]:
        """Of the share coordinators, by container."""
        return {
            container: int(docker("exec", container, "cat", "node-id", environment=self.environment))
            for container in self.containers("share-coordinator")
        }


def rows(table: str) -> list[list[str]]:
    """The cells of the lines of a table that the kshare command printed."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line]


@contextmanager
def running_stack() -> Iterator[Stack]:
    environment, tag = images()
    environment = {
        **environment,
        "COMPOSE_PROJECT_NAME": f"kshare-test-{os.getpid()}",
        "KSHARE_TAG": tag,
        "KSHARE_PORT_1": str(free_port()),
        "KSHARE_PORT_2": str(free_port()),
        "KSHARE_ADVERTISED_HOST": "127.0.0.1",
    }
    os.environ.update(environment)  # testcontainers hands the process's own on
    stack = Stack(environment)
    compose = DockerCompose(str(ROOT), pull=False, build=False, wait=True, keep_volumes=False)
    try:
        compose.start()
        yield stack
    except BaseException:
        print(stack.compose("logs", "--tail", "40"))
        raise
    finally:
        stack.compose("--profile", "tools", "down", "--volumes", "--timeout", "20")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as found:
        yield found


def test_the_containers_may_do_no_more_than_they_must(stack: Stack) -> None:
    for service in ("coordinator", "share-coordinator", "leader", "gateway-1"):
        container = stack.containers(service)[0]
        (described,) = json.loads(docker("inspect", container, environment=stack.environment))
        assert described["Config"]["User"] == "10001:10001"
        assert described["HostConfig"]["ReadonlyRootfs"] is True
        assert described["HostConfig"]["CapDrop"] == ["ALL"]
        assert described["State"]["Health"]["Status"] == "healthy"
        assert described["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
        bill = json.loads(docker("exec", container, "cat", "/opt/kshare/sbom.cdx.json", environment=stack.environment))
        names = {component["name"] for component in bill["components"]}
        assert {"grpcio", "kshare-core"} <= names
        assert not names & {"pytest", "confluent-kafka", "typer"}, "what only tests and the kshare command need"


@pytest.mark.timeout(600)
def test_nothing_is_lost_while_containers_die_and_share_coordinators_are_scaled(stack: Stack) -> None:
    bootstrap, other = stack.bootstraps
    create_topic(bootstrap, "orders", PARTITIONS)
    read_from_earliest(other, "workers")
    tasks = [
        WorkerTask(bootstrap=stack.bootstraps[index % 2], topic="orders", group="workers", index=index, release_every=7)
        for index in range(3)
    ]
    total = 0

    def produce() -> None:
        nonlocal total
        produce_numbered(stack.bootstraps[total // STEP % 2], "orders", range(total, total + STEP), PARTITIONS)
        total += STEP

    with WorkerPool(tasks) as pool:
        produce()
        pool.run_until(lambda account: account.settled >= total, timeout_s=90)
        for service in ("leader", "share-coordinator", "coordinator", "gateway-1"):
            container = stack.containers(service)[-1]
            stack.kill(container)
            stack.start(container)
            produce()
            pool.run_until(lambda account: account.settled >= total, timeout_s=120)
        before = stack.node_ids()
        stack.scale("share-coordinator", 3)
        wait_for(lambda: stack.loads() == [16, 17, 17], "three share coordinators have their part", timeout_s=60)
        produce()
        pool.run_until(lambda account: account.settled >= total, timeout_s=90)
        (added,) = {*stack.node_ids().items()} - {*before.items()}
        assert "is empty and can be stopped" in stack.kshare("state", "drain", str(added[1]))
        docker("rm", "--force", added[0], environment=stack.environment)
        assert [load for load in stack.loads() if load] == [25, 25]
        produce()
        pool.run_until(lambda account: account.settled >= total, timeout_s=90)
    assert pool.account.finish() == []
    assert len(pool.account.accepted_at) + len(pool.account.unknown) == total
