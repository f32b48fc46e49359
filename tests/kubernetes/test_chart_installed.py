"""The chart on a real Kubernetes, under the load of real clients from outside: nothing is lost, whatever is done to it.

One installation goes through all of a cluster's life: helm test, scaling, pods that die, a node that is drained, an
upgrade, a rollback, and an uninstall with a new installation on the same volumes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import wait_for
from support.clients.rolling_load import RollingLoad
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.kubernetes import CHART, RELEASE, Kubernetes, kubernetes
from support.environment.certificates import Authority

PORT = 30_092
PARTITIONS = 12
STEP = 600
NAME = f"{RELEASE}-kshare"
STATE_PARTITIONS = 50
LONGEST_PAUSE_S = 5.0
GOES_ON_WITHIN_S = 30.0
"""After pods were deleted without a word to their processes, new pods included."""
ROLES = ("coordinator", "share-coordinator", "leader", "gateway")
CALLED_ROLES = ("coordinator", "share-coordinator", "leader")
ADMINISTRATOR = CHART.parents[1] / "deploy" / "kubernetes" / "administrator.yaml"
EXISTING_KAFKA = Path(__file__).with_name("existing-kafka.yaml")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as found:
        yield found


class Installation:
    def __init__(self, cluster: Kubernetes) -> None:
        self.cluster = cluster
        self.values = {
            **cluster.values,
            "gateway": {"external": {"type": "perGateway", "host": cluster.node, "port": PORT}},
        }
        self.bootstraps = [f"{cluster.node}:{PORT + ordinal}" for ordinal in range(2)]
        self.kind = "statefulset"
        """The kind of the roles' workloads."""

    def attach(self, kafka: str) -> None:
        """To be installed in front of an existing Kafka: all roles are Deployments, all gateways at one address."""
        self.values["engine"] = {"type": "kafka", "kafka": {"bootstrapServers": kafka}}
        self.values["coordinator"] = {"replicas": 2}
        self.values["gateway"] = {"external": {"type": "nodePort", "host": self.cluster.node, "port": PORT}}
        self.bootstraps = [f"{self.cluster.node}:{PORT}"]
        self.kind = "deployment"

    def install(self) -> None:
        self._helm("install", "--wait", "--timeout", "180s")

    def upgrade(self, **config: str) -> None:
        self.values["config"] = config
        self._helm("upgrade", "--wait", "--timeout", "240s")

    def _helm(self, *arguments: str) -> None:
        command, *rest = arguments
        try:
            self.cluster.helm(command, RELEASE, str(CHART), "--values", "-", *rest, given=json.dumps(self.values))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.describe_trouble()}") from None

    def pods(self, role: str) -> list[str]:
        selector = f"app.kubernetes.io/component={role}"
        items = self.cluster.get("pods", "--selector", selector)["items"]
        return sorted(item["metadata"]["name"] for item in items)

    def test(self) -> None:
        """`helm test`; what its pod printed is part of the error."""
        try:
            self.cluster.helm("test", RELEASE, "--timeout", "120s")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.kubectl('logs', f'{NAME}-test')}") from None

    def is_gone(self) -> bool:
        """Whether no pod is left. A StatefulSet that is made while pods of its name still end may stay without one."""
        return not self.cluster.get("pods", "--selector", f"app.kubernetes.io/instance={RELEASE}")["items"]

    def scale(self, role: str, replicas: int) -> None:
        """Returns when the pods that are scaled away are gone, so when they have handed over what they had."""
        self.cluster.kubectl("scale", f"{self.kind}/{NAME}-{role}", "--replicas", str(replicas))
        wait_for(lambda: len(self.pods(role)) == replicas, f"{replicas} pods of {role}", timeout_s=180)
        self.cluster.wait_for(self.kind, f"{NAME}-{role}")

    def roll(self, role: str) -> None:
        self.cluster.kubectl("rollout", "restart", f"{self.kind}/{NAME}-{role}")
        self.cluster.wait_for(self.kind, f"{NAME}-{role}")

    def delete_pods(self, *roles: str) -> None:
        """All pods of the roles at once, without a word to their processes; returns when new ones are ready."""
        selector = f"app.kubernetes.io/component in ({', '.join(roles)})"
        self.cluster.kubectl("delete", "pods", "--selector", selector, "--grace-period", "0", "--force")
        for role in roles:
            self.cluster.wait_for(self.kind, f"{NAME}-{role}")

    def state_partitions(self) -> dict[str, int]:
        """How many each share coordinator has, as its metrics say."""
        program = (
            "import urllib.request as u; t = u.urlopen('http://127.0.0.1:9464/metrics').read().decode();"
            "print([l.split()[-1] for l in t.splitlines() if l.startswith('kshare_share_coordinator_state_partitions ')"
            " or l.startswith('kshare_share_coordinator_state_partitions{')][0])"
        )
        found = {}
        for pod in self.pods("share-coordinator"):
            found[pod] = int(float(self.cluster.kubectl("exec", pod, "--", "python", "-c", program)))
        return found


class Load:
    """Workers outside of the cluster, and how many records they were given."""

    def __init__(self, installation: Installation, pool: WorkerPool) -> None:
        self._installation = installation
        self._pool = pool
        self.total = 0

    def goes_on_after(self, what: Callable[[], object]) -> None:
        """Records that are produced after it, and all before, are worked on."""
        what()
        bootstrap = self._installation.bootstraps[self.total // STEP % 2]
        produce_numbered(bootstrap, "orders", range(self.total, self.total + STEP), PARTITIONS)
        self.total += STEP
        self._pool.run_until(lambda account: len(account.accepted) >= self.total, timeout_s=150)


@pytest.mark.timeout(1_500)
def test_the_life_of_an_installation(cluster: Kubernetes) -> None:
    installation = Installation(cluster)
    installation.install()
    installation.test()
    create_topic(installation.bootstraps[0], "orders", PARTITIONS)
    read_from_earliest(installation.bootstraps[1], "workers")
    tasks = [
        WorkerTask(
            bootstrap=",".join(installation.bootstraps), topic="orders", group="workers", index=index, release_every=7
        )
        for index in range(3)
    ]
    with WorkerPool(tasks) as pool:
        load = Load(installation, pool)
        load.goes_on_after(lambda: None)
        check_scaling(installation, load)
        for role in ("share-coordinator", "leader", "coordinator", "gateway"):
            pod = installation.pods(role)[-1]
            load.goes_on_after(partial(cluster.kubectl, "delete", "pod", pod, "--grace-period", "0", "--force"))
            cluster.wait_for("statefulset", f"{NAME}-{role}")
        check_drain(installation, load)
        load.goes_on_after(lambda: installation.upgrade(**{"group.share.max.size": "500"}))
        assert "group.share.max.size=500" in cluster.kubectl("get", "configmap", NAME, "--output", "yaml")
        load.goes_on_after(lambda: cluster.helm("rollback", RELEASE, "1", "--wait", "--timeout", "240s"))
        assert "group.share.max.size=500" not in cluster.kubectl("get", "configmap", NAME, "--output", "yaml")
        cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")
        wait_for(installation.is_gone, "all pods are gone", timeout_s=120)
        del installation.values["config"]
        load.goes_on_after(installation.install)
        pool.run_until_drained(installation.bootstraps[0], "workers", "orders", timeout_s=150)
    assert pool.account.finish(range(load.total)) == []
    cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")


@pytest.mark.timeout(900)
def test_an_autoscaler_that_is_switched_on_keeps_the_number_of_pods(cluster: Kubernetes) -> None:
    """An upgrade that only left `replicas` out would make it 1: two share coordinators would hand everything over."""
    installation = Installation(cluster)
    installation.values["gateway"] = {"replicas": 3}
    installation.install()
    installation.scale("share-coordinator", 3)
    installation.values["autoscaling"] = {
        "gateway": {"enabled": True, "minReplicas": 1, "maxReplicas": 5},
        "shareCoordinator": {"by": "hpa", "minReplicas": 1, "maxReplicas": 5},
    }
    installation.values["networkPolicy"] = {
        "enabled": True,
        "clients": [{"podSelector": {"matchLabels": {"team": "a"}}}],
    }
    installation.upgrade()
    found = {
        kind: cluster.get(kind, f"{NAME}-{role}")["spec"]["replicas"]
        for kind, role in (("statefulset", "share-coordinator"), ("deployment", "gateway"))
    }
    assert found == {"statefulset": 3, "deployment": 3}
    installation.test()
    cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")
    wait_for(installation.is_gone, "all pods are gone", timeout_s=120)


@pytest.mark.timeout(900)
def test_rollouts_do_not_pause_clients(cluster: Kubernetes) -> None:
    """`kubectl rollout restart` of every workload; Kubernetes replaces one pod after the other."""
    installation = Installation(cluster)
    installation.install()
    with RollingLoad(installation.bootstraps, PARTITIONS) as load:
        for role in ("coordinator", "share-coordinator", "leader", "gateway"):
            load.during(role, partial(installation.roll, role), settle_s=5)
        load.finish()
    load.check_pauses(LONGEST_PAUSE_S)
    cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")


@pytest.fixture
def existing_kafka(cluster: Kubernetes) -> Iterator[str]:
    """Its address for clients outside of the cluster; pods reach it at kafka:9092."""
    manifest = EXISTING_KAFKA.read_text().replace("IMAGE", cluster.kafka_image).replace("NODE:", f"{cluster.node}:")
    cluster.kubectl("apply", "--filename", "-", given=manifest)
    try:
        cluster.wait_for("statefulset", "kafka")
        yield f"{cluster.node}:30192"
    finally:
        cluster.kubectl("delete", "--filename", "-", "--grace-period", "1", given=manifest)


@pytest.mark.timeout(1_500)
def test_pods_in_front_of_an_existing_kafka_keep_nothing(cluster: Kubernetes, existing_kafka: str) -> None:
    """All pods of all roles are deleted at once under load, and groups go on: nothing is lost or accepted twice.

    What is done in order, by scaling and restarts, pauses no consumer for more than five seconds.
    """
    installation = Installation(cluster)
    installation.attach("kafka:9092")
    installation.install()
    installation.test()
    workloads = cluster.get("deployments,statefulsets", "--selector", f"app.kubernetes.io/instance={RELEASE}")["items"]
    assert sorted(each["kind"] for each in workloads) == ["Deployment"] * len(ROLES)
    for each in workloads:
        volumes = each["spec"]["template"]["spec"]["volumes"]
        assert all({"configMap", "emptyDir"} & set(volume) for volume in volumes), "only configs and /tmp"
    for role in ROLES:
        kept = cluster.kubectl("exec", installation.pods(role)[0], "--", "find", "/var/lib/kshare", "-type", "f")
        assert kept == "", f"{role} wrote to its disk"
    killed = {f"{each} deleted": GOES_ON_WITHIN_S for each in ("all pods", *ROLES)}
    with RollingLoad(installation.bootstraps, PARTITIONS, existing_cluster=existing_kafka) as load:
        for name, roles in zip(killed, (ROLES, *((role,) for role in ROLES)), strict=True):
            load.during(name, partial(installation.delete_pods, *roles))
            load.catch_up(GOES_ON_WITHIN_S)
        load.during("leaders scaled up", lambda: installation.scale("leader", 4))
        load.during("leaders scaled down", lambda: installation.scale("leader", 1))
        for role in ROLES:
            load.during(f"{role} restarted", partial(installation.roll, role))
        load.finish()
    load.check_pauses(LONGEST_PAUSE_S, killed)
    cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")
    wait_for(installation.is_gone, "all pods are gone", timeout_s=120)


@pytest.mark.timeout(600)
def test_tls_at_a_node_port(cluster: Kubernetes, tmp_path: Path) -> None:
    """A Secret with a certificate for the node's address; clients from outside get in with TLS, and not without.

    Roles have TLS between them, too.
    """
    authority = Authority("tests")
    authority.write(tmp_path / "ca.pem")
    authority.issue("gateway", cluster.node).write_directory(tmp_path / "secret")
    files = (f"--cert={tmp_path}/secret/tls.crt", f"--key={tmp_path}/secret/tls.key")
    cluster.kubectl("create", "secret", "tls", "gateway-certificate", *files)
    installation = Installation(cluster)
    installation.values["gateway"] = {
        "replicas": 1,
        "external": {"type": "nodePort", "host": cluster.node, "port": PORT},
    }
    names = [f"*.{NAME}-{role}.default.svc" for role in ("coordinator", "share-coordinator", "leader")]
    authority.issue("role", names=names).write_directory(tmp_path / "roles")
    authority.write(tmp_path / "roles" / "ca.crt")
    cluster.kubectl("create", "secret", "generic", "roles-certificate", f"--from-file={tmp_path}/roles")
    installation.values["tls"] = {
        "enabled": True,
        "secretName": "gateway-certificate",
        "roles": {"enabled": True, "secretName": "roles-certificate"},
    }
    installation.install()
    installation.test()
    address = f"{cluster.node}:{PORT}"
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "security.protocol": "ssl",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    admin = AdminClient(settings)
    brokers = admin.list_topics(timeout=30).brokers.values()
    assert [f"{broker.host}:{broker.port}" for broker in brokers] == [address]
    topic = f"tls-{uuid.uuid4().hex[:8]}"
    producer = Producer(settings)
    producer.produce(topic, b"a record")
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None and message.value() == b"a record"
    consumer.close()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=5)
    cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")
    cluster.kubectl("delete", "secret", "gateway-certificate", "roles-certificate")


@pytest.mark.timeout(900)
def test_a_job_gives_each_role_its_certificate(cluster: Kubernetes) -> None:
    """With an authorizer: clients work, an administrator's pod gives commands, and a leader's certificate does not."""
    installation = Installation(cluster)
    installation.values["config"] = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "true",
    }
    installation.values["tls"] = {"roles": {"enabled": True, "job": True}}
    installation.install()
    installation.test()
    secrets = cluster.get("secrets", "--selector", f"app.kubernetes.io/instance={RELEASE}")["items"]
    names = {f"{role}-roles-tls" for role in (*CALLED_ROLES, "gateway", "administrator")} | {"roles-authority"}
    found = {item["metadata"]["name"]: item["data"] for item in secrets if item["type"] == "kubernetes.io/tls"}
    assert set(found) == {f"{NAME}-{name}" for name in names}
    assert not cluster.get("jobs")["items"] and "role-certificates" not in cluster.kubectl("get", "roles")
    settings = cluster.values["image"]
    assert isinstance(settings, dict)
    image = f"{settings['registry']}/cli:{settings['tag']}"
    manifest = ADMINISTRATOR.read_text().replace("registry.example.com/kshare/cli:0.1.0", image)
    for role, is_allowed in (("administrator", True), ("leader", False)):
        given = manifest.replace("administrator-roles-tls", f"{role}-roles-tls")
        cluster.kubectl("apply", "--filename", "-", given=given)
        cluster.kubectl("wait", "--for=condition=Ready", "pod/queues-administrator", "--timeout=60s")
        command = ("exec", "queues-administrator", "--", "kshare", "nodes")
        if is_allowed:
            assert "share-coordinator" in cluster.kubectl(*command)
        else:
            with pytest.raises(AssertionError, match="may be called by administrator"):
                cluster.kubectl(*command)
        cluster.kubectl("delete", "pod", "queues-administrator", "--grace-period=1")
    installation.roll("leader")
    installation._helm("upgrade", "--wait", "--timeout", "240s")
    after = cluster.get("secrets", "--selector", f"app.kubernetes.io/instance={RELEASE}")["items"]
    assert {item["metadata"]["name"]: item["data"] for item in after if item["type"] == "kubernetes.io/tls"} == found
    installation.test()
    cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")
    cluster.kubectl("delete", "secret", "--selector", f"app.kubernetes.io/instance={RELEASE}")


def check_scaling(installation: Installation, load: Load) -> None:
    """Share coordinators 2 -> 3 -> 1 -> 2, and leaders 2 -> 1 -> 2; a pod that is scaled away leaves nothing behind."""
    load.goes_on_after(lambda: installation.scale("share-coordinator", 3))
    wait_for(
        lambda: sorted(installation.state_partitions().values()) == [16, 17, 17], "three have their part", timeout_s=60
    )
    load.goes_on_after(lambda: installation.scale("share-coordinator", 1))
    assert list(installation.state_partitions().values()) == [STATE_PARTITIONS]
    load.goes_on_after(lambda: installation.scale("share-coordinator", 2))
    load.goes_on_after(lambda: installation.scale("leader", 1))
    load.goes_on_after(lambda: installation.scale("leader", 2))


def check_drain(installation: Installation, load: Load) -> None:
    """`kubectl drain` takes one pod of a role at a time and waits for the budget; the only node gets them back."""
    cluster = installation.cluster
    (node,) = [item["metadata"]["name"] for item in cluster.get("nodes")["items"]][:1]
    budgets = cluster.get("poddisruptionbudgets")["items"]
    assert {item["metadata"]["name"] for item in budgets} == {
        f"{NAME}-{role}" for role in ("coordinator", "share-coordinator", "leader", "gateway")
    }
    eviction = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout", "20s"]
    selector = ["--pod-selector", "app.kubernetes.io/component=leader"]
    try:
        cluster.kubectl(*eviction, *selector)
    except AssertionError as refusal:  # the second leader may not go before the first one is back, and it cannot be
        assert "disruption budget" in str(refusal)
    else:
        raise AssertionError("the budget did not hold the second leader")
    assert len(installation.pods("leader")) == 2
    cluster.kubectl("uncordon", node)
    cluster.wait_for("statefulset", f"{NAME}-leader")
    load.goes_on_after(lambda: None)
