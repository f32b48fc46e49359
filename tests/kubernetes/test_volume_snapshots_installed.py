"""Snapshots of volumes on a real Kubernetes restore a backup, and volumes grow, as our documents say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Message, Producer

from support.clients.delivery import ACCEPT, RELEASE, Reader, new_group, new_topic, produce, values_of, wait_for
from support.clusters.documented_commands import shell_after
from support.clusters.helm_release import Release
from support.clusters.kubernetes import CHART, Kubernetes, kubernetes
from support.clusters.storage import CLASS, snapshot_storage
from support.environment.docker import ROOT

PORT = 30_092
OPERATIONS = ROOT / "docs/operations.md"
SIZE = "512Mi"
LARGER, LARGER_BYTES = "1Gi", 1 << 30
ROLES = ("coordinator", "shareCoordinator", "leader")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as found, snapshot_storage(found):
        yield found


def documented(sentence: str) -> str:
    script = shell_after(OPERATIONS, sentence)
    return script.replace("SNAPSHOT_CLASS", CLASS).replace("STORAGE_CLASS", CLASS)


@contextmanager
def producing(bootstrap: str, topic: str) -> Iterator[list[int]]:
    """A producer at work; what it gives are the numbers that were confirmed so far."""
    stop = threading.Event()
    confirmed: list[int] = []

    def delivered(error: object, message: Message[bytes, bytes]) -> None:
        if error is None:
            confirmed.append(int(message.value() or b""))

    def work() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        number = 0
        while not stop.wait(0.01):
            producer.produce(topic, str(number).encode(), on_delivery=delivered)
            producer.poll(0)
            number += 1
        producer.flush(30)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield confirmed
    finally:
        stop.set()
        thread.join()


def take(bootstrap: str, group: str, topic: str, count: int) -> list[str]:
    """Accepts so many records and releases what came beside them; the values of the accepted ones."""
    taken: list[str] = []
    with Reader(bootstrap, group, topic) as reader:
        while len(taken) < count:
            messages = reader.take(60)
            accepted = messages[: count - len(taken)]
            for message in messages:
                reader.consumer.acknowledge(message, ACCEPT if message in accepted else RELEASE)
            assert not reader.commit()
            taken += values_of(accepted)
    return taken


@pytest.mark.timeout(1_500)
def test_a_backup_by_snapshots_is_restored_and_volumes_grow(cluster: Kubernetes) -> None:
    release = Release(cluster)
    for role in ROLES:
        release.values[role] = {"replicas": 1, "storage": {"size": SIZE, "className": CLASS}}
    release.values["gateway"] = {"replicas": 1, "external": {"type": "nodePort", "host": cluster.node, "port": PORT}}
    release.helm("install")
    bootstrap = f"{cluster.node}:{PORT}"
    orders, busy, group = new_topic(bootstrap, name="orders"), new_topic(bootstrap, name="busy"), new_group(bootstrap)
    produce(bootstrap, orders, map(str, range(100)))
    before = take(bootstrap, group, orders, 40)

    with producing(bootstrap, busy) as confirmed:
        wait_for(lambda: len(confirmed) >= 50, "the producer is at work")
        produced_before = list(confirmed)
        cluster.shell(documented("no pod should restart and no partition move meanwhile:"))
    produce(bootstrap, orders, ["after the backup"])
    take(bootstrap, group, orders, 20)

    release.uninstall()
    release.delete_volumes()
    cluster.shell(documented("Claims of those names must be gone."))
    assert release.claims() == {"coordinator", "share-coordinator", "leader"}
    release.helm("install")
    left = take(bootstrap, group, orders, 100 - len(before))
    assert sorted(left, key=int) == [str(number) for number in range(100) if str(number) not in before]
    found = set(take(bootstrap, new_group(bootstrap), busy, len(produced_before)))
    assert found >= {str(number) for number in produced_before}

    check_larger_volumes(cluster, release)
    produce(bootstrap, orders, ["after the expansion"])
    assert take(bootstrap, group, orders, 1) == ["after the expansion"]
    release.uninstall()


def check_larger_volumes(cluster: Kubernetes, release: Release) -> None:
    """The procedure of the chart's README; no pod is replaced."""
    pods = release.all_pods()
    script = shell_after(CHART / "README.md", "and the StatefulSet is made anew around its running pods.")
    assert script.count("40Gi") == 2
    cluster.shell(script.replace("40Gi", LARGER))
    cluster.wait_for("statefulset", f"{release.fullname}-leader")
    (template,) = cluster.get("statefulset", f"{release.fullname}-leader")["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == LARGER
    cluster.kubectl(
        *("wait", "--for", f"jsonpath={{.status.capacity.storage}}={LARGER}", "--timeout", "120s"),
        f"persistentvolumeclaim/data-{release.fullname}-leader-0",
    )
    program = "import shutil; print(shutil.disk_usage('/var/lib/kshare').total)"
    total = cluster.kubectl("exec", f"{release.fullname}-leader-0", "--", "python", "-c", program)
    assert int(total) > 0.9 * LARGER_BYTES
    assert release.all_pods() == pods
