"""The image with all roles (`docker run IMAGE`), and that of the kshare command (`docker run IMAGE demo`)."""

from __future__ import annotations

import uuid

import pytest

from support.clients.delivery import Reader, new_group, new_topic, produce, values_of, wait_for
from support.environment.docker import docker, docker_environment, image
from support.environment.free_ports import free_port

pytestmark = pytest.mark.timeout(1_200)

DEMO_TIMEOUT_S = 300


def logs_of(container: str) -> str:
    return docker("logs", container, environment=docker_environment())


def test_up_in_a_container_serves_clients_outside_of_it() -> None:
    name, environment, port = image("all-in-one"), docker_environment(), free_port()
    container = f"kshare-test-{uuid.uuid4().hex[:8]}"
    publish = ("--publish", f"127.0.0.1:{port}:9092")
    advertised = ("--advertised", f"127.0.0.1:{port}")
    docker("run", "--detach", "--name", container, *publish, name, *advertised, environment=environment)
    try:
        wait_for(lambda: "kshare listens on" in logs_of(container), "kshare up is ready", timeout_s=60)
        bootstrap = f"127.0.0.1:{port}"
        topic, group = new_topic(bootstrap), new_group(bootstrap)
        produce(bootstrap, topic, ["hello"])
        with Reader(bootstrap, group, topic) as reader:
            assert values_of(reader.accept(1)) == ["hello"]
        docker("stop", "--time", "30", container, environment=environment)
        code = docker("inspect", "--format", "{{.State.ExitCode}}", container, environment=environment)
        assert code.strip() == "0", logs_of(container)
    finally:
        docker("rm", "--force", "--volumes", container, environment=environment)


def test_the_demo_runs_in_a_container() -> None:
    name, environment = image("cli"), docker_environment()
    run = ("run", "--rm", "--read-only", "--tmpfs", "/tmp", name)
    printed = docker(*run, "demo", "--orders", "2000", environment=environment, timeout_s=DEMO_TIMEOUT_S)
    assert "accepted twice" in printed


def test_no_user_of_an_image_has_a_shell() -> None:
    run = ("run", "--rm", "--entrypoint", "cat", image("cli"), "/etc/passwd")
    users = [line.split(":") for line in docker(*run, environment=docker_environment()).splitlines()]
    assert {user[0] for user in users} >= {"root", "kshare"}
    assert [user[0] for user in users if user[-1].endswith("sh")] == []
