"""The profile `kafka` of docker-compose.yml: share groups for an Apache Kafka 3.9, by containers without a volume."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import Reader, values_of
from support.clients.rolling_load import RollingLoad
from support.clients.workload import produce_numbered
from support.clusters.compose_stack import ATTACHED_GATEWAY, Stack, attached_stack
from support.environment.docker import docker

PARTITIONS = 6
RECORDS = 600
CATCHES_UP_WITHIN_S = 180.0
ROLES = ("attached-coordinator", "attached-share-coordinator", "attached-leader", ATTACHED_GATEWAY)

pytestmark = [pytest.mark.large_image, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with attached_stack() as found:
        yield found


def scale(stack: Stack, role: str, count: int) -> None:
    options = ("--detach", "--no-recreate", "--no-build", "--no-deps", "--scale", f"{role}={count}")
    stack.compose("up", *options, role)


def test_only_kafka_has_a_volume(stack: Stack) -> None:
    """And no role writes to where its image would have one."""
    for role in ROLES:
        for container in stack.containers(role):
            listing = ("inspect", "--format", "{{range .Mounts}}{{.Type}} {{end}}", container)
            assert "volume" not in docker(*listing, environment=stack.environment).split(), container
            search = ("exec", container, "find", "/var/lib/kshare", "-type", "f")
            assert docker(*search, environment=stack.environment) == "", container


def test_containers_are_replaced_under_load(stack: Stack) -> None:
    """No record is lost, and none accepted twice."""
    with RollingLoad([stack.attached], PARTITIONS, existing_cluster=stack.kafka) as load:
        for replaced in (*((role,) for role in ROLES), ROLES):
            load.during(", ".join(replaced), partial(stack.replace, *replaced))
            load.catch_up(CATCHES_UP_WITHIN_S)
        for count in (3, 1):
            load.during(f"{count} leaders", partial(scale, stack, "attached-leader", count))
            load.catch_up(CATCHES_UP_WITHIN_S)
        load.finish()
    print(load.table())


def test_groups_go_on_after_down_and_up(stack: Stack) -> None:
    """Only Kafka's volume is left meanwhile, which has the positions of groups, too."""
    create_topic(stack.kafka, "orders", PARTITIONS)
    read_from_earliest(stack.attached, "workers")
    produce_numbered(stack.kafka, "orders", range(RECORDS), PARTITIONS)
    with Reader(stack.attached, "workers", "orders") as reader:
        accepted = values_of(reader.accept(RECORDS // 2))
    stack.down_and_up()
    with Reader(stack.attached, "workers", "orders") as reader:
        rest = values_of(reader.accept(RECORDS - len(accepted)))
    assert len({*accepted, *rest}) == len(accepted) + len(rest) == RECORDS
