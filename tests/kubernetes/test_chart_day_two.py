"""What a team asks of the chart after the first day, as it is rendered; no cluster is needed."""

from __future__ import annotations

import functools
import shlex
import subprocess
from typing import Any

import pytest
import yaml

from support.clusters.kubernetes import CHART, helm_environment, run

ROLES = ("coordinator", "share-coordinator", "leader", "gateway")


@functools.cache
def _text(values: tuple[str, ...], files: tuple[str, ...]) -> str:
    command = ["helm", "template", "queues", str(CHART), "--kube-version", "1.36.3", "--namespace", "team"]
    command += [word for file in files for word in ("--values", str(CHART / "ci" / file))]
    command += [word for value in ("image.registry=kshare", *values) for word in ("--set", value)]
    return run(*command, environment=helm_environment())


class Rendered:
    """The objects of one rendering, by kind and name."""

    def __init__(self, *values: str, files: tuple[str, ...] = ()) -> None:
        found = yaml.load_all(_text(values, files), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self._objects = {(each["kind"], each["metadata"]["name"]): each for each in found if each}

    def __getitem__(self, key: tuple[str, str]) -> dict[str, Any]:
        kind, name = key
        found: dict[str, Any] = self._objects[kind, f"queues-kshare{name}"]
        return found

    def workloads(self) -> dict[str, dict[str, Any]]:
        """By role."""
        kinds = ("Deployment", "StatefulSet")
        return {
            each["metadata"]["labels"]["app.kubernetes.io/component"]: each
            for (kind, _), each in self._objects.items()
            if kind in kinds
        }

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [each for (of, _), each in self._objects.items() if of == kind]

    def everything(self) -> list[dict[str, Any]]:
        return list(self._objects.values())


def variables(workload: dict[str, Any]) -> dict[str, str]:
    """The variables of the first container that have a value."""
    (container, *_) = workload["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def told_at_start(workload: dict[str, Any], pod: str, pod_ip: str) -> dict[str, str]:
    """The variables that the start command of a gateway hands on, as a shell computes them."""
    (container, *_) = workload["spec"]["template"]["spec"]["containers"]
    script = container["command"][2].replace("exec python -m kshare_servicekit.container gateway", "env")
    given = {name: text.replace("$(POD_IP)", pod_ip) for name, text in variables(workload).items()}
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={**given, "POD_NAME": pod, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


# Listeners


@pytest.mark.parametrize(("kind", "service"), [("loadBalancer", "LoadBalancer"), ("nodePort", "NodePort")])
def test_clients_inside_are_told_addresses_inside(kind: str, service: str) -> None:
    """With one listener for all, clients in the cluster were sent to the load balancer and back."""
    values = (f"gateway.external.type={kind}", "gateway.external.host=kafka.example.com", "gateway.external.port=30100")
    found = Rendered(*values)
    told = variables(found["Deployment", "-gateway"])
    assert told["KSHARE_LISTENERS"] == "PLAINTEXT://0.0.0.0:9092,EXTERNAL://0.0.0.0:9094"
    assert told["KSHARE_ADVERTISED_LISTENERS"] == "PLAINTEXT://$(POD_IP):9092,EXTERNAL://kafka.example.com:30100"
    outside = found["Service", "-gateway-external"]["spec"]
    assert outside["type"] == service and [each["targetPort"] for each in outside["ports"]] == ["kafka-outside"]
    assert [each["targetPort"] for each in found["Service", "-gateway"]["spec"]["ports"]] == ["kafka"]
    assert ",EXTERNAL:PLAINTEXT\n" in found["ConfigMap", ""]["data"]["kshare.properties"]


def test_the_outside_listener_has_the_protocol_of_the_inside_one() -> None:
    found = Rendered(files=("day-two.yaml",))
    configs = found["ConfigMap", ""]["data"]["kshare.properties"]
    assert configs.count("listener.security.protocol.map=") == 1
    assert "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SASL_SSL,EXTERNAL:SASL_SSL\n" in configs


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"])
def test_certificates_are_asked_for_where_an_outside_listener_has_tls(protocol: str) -> None:
    """A gateway refuses to start with a setting of TLS for a listener without it."""
    external = ("gateway.external.type=nodePort", "gateway.external.host=h", f"gateway.external.protocol={protocol}")
    found = Rendered("tls.enabled=true", "tls.secretName=s", "tls.clientAuth=required", *external)
    configs = found["ConfigMap", ""]["data"]["kshare.properties"]
    assert "listener.name.ssl.ssl.client.auth=required\n" in configs
    assert ("listener.name.external.ssl.client.auth=required\n" in configs) is protocol.endswith("SSL")


def test_each_gateway_has_a_load_balancer_and_says_its_own_address() -> None:
    found = Rendered(files=("day-two.yaml",))
    for ordinal in range(3):
        service = found["Service", f"-gateway-{ordinal}"]
        assert service["metadata"]["annotations"] == {
            "external-dns.alpha.kubernetes.io/hostname": f"kafka-{ordinal}.example.com"
        }
        assert service["spec"]["externalTrafficPolicy"] == "Local"
        assert service["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24", "2001:db8::/32"]
        assert service["spec"]["loadBalancerClass"] == "example.com/network"
        assert service["spec"]["ports"] == [{"name": "kafka", "port": 9094, "targetPort": "kafka-outside"}]
    told = told_at_start(found["StatefulSet", "-gateway"], "queues-kshare-gateway-2", "fd00::7")
    assert told["KSHARE_NODE_ID"] == "3"
    assert told["KSHARE_ADVERTISED_LISTENERS"] == (
        "PLAINTEXT://fd00::7:9092,SSL://queues-kshare-gateway.team.svc:9093,EXTERNAL://kafka-2.example.com:9094"
    )


def test_each_gateway_has_a_node_port_or_the_host_that_is_given_for_it() -> None:
    values = ("gateway.external.type=perGateway", "gateway.external.port=30100")
    ports = Rendered(*values, "gateway.external.host=10.0.0.9")
    told = told_at_start(ports["StatefulSet", "-gateway"], "queues-kshare-gateway-1", "10.1.0.7")
    assert told["KSHARE_ADVERTISED_LISTENERS"] == "PLAINTEXT://10.1.0.7:9092,EXTERNAL://10.0.0.9:30101"
    assert ports["Service", "-gateway-1"]["spec"]["ports"][0]["nodePort"] == 30101
    hosts = Rendered(*values, "gateway.external.hosts={a.example.com,2001:db8::1}")
    told = told_at_start(hosts["StatefulSet", "-gateway"], "queues-kshare-gateway-1", "10.1.0.7")
    assert told["KSHARE_ADVERTISED_LISTENERS"] == "PLAINTEXT://10.1.0.7:9092,EXTERNAL://[2001:db8::1]:30101"


def test_the_ordinal_may_stand_before_letters() -> None:
    values = ("gateway.external.type=perGateway", "gateway.external.host=kafka{ordinal}eu.example.com")
    told = told_at_start(Rendered(*values)["StatefulSet", "-gateway"], "queues-kshare-gateway-1", "10.1.0.7")
    assert told["KSHARE_ADVERTISED_LISTENERS"].endswith(",EXTERNAL://kafka1eu.example.com:30093")


def test_no_session_affinity_is_required() -> None:
    values = ("tls.enabled=true", "tls.secretName=a", "gateway.sessionAffinity=None")
    assert Rendered(*values)["Service", "-gateway"]["spec"]["sessionAffinity"] == "None"
    assert "sessionAffinity" not in Rendered()["Service", "-gateway"]["spec"]


def test_source_ranges_are_let_in_by_the_network_policy_at_the_outside_listener_only() -> None:
    rules = Rendered(files=("day-two.yaml",))["NetworkPolicy", "-gateway"]["spec"]["ingress"]
    cidrs = {
        rule["ports"][0]["port"]: [p["ipBlock"]["cidr"] for p in rule.get("from", []) if "ipBlock" in p]
        for rule in rules
    }
    assert cidrs == {"kafka": [], "kafka-outside": ["203.0.113.0/24", "2001:db8::/32"], "metrics": []}


# Pods


def test_what_is_set_for_all_pods_or_for_one_role_is_on_them() -> None:
    found = Rendered(files=("day-two.yaml",))
    workloads = found.workloads()
    assert set(workloads) == {*ROLES, "toolbox"}
    for role, workload in workloads.items():
        template = workload["spec"]["template"]
        assert template["metadata"]["labels"]["team"] == "orders"
        assert variables(workload)["TZ"] == "UTC"
        assert template["spec"]["priorityClassName"] == ("most-important" if role == "leader" else "important")
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["runAsNonRoot"] is True
        assert ("ONLY" in variables(workload)) == (role == "gateway")
        assert (template["metadata"]["labels"].get("tier") == "front") == (role == "gateway")
        assert "team" not in workload["spec"]["selector"]["matchLabels"], "a selector cannot be changed later"
    assert workloads["gateway"]["metadata"]["annotations"] == {"example.com/owner": "orders"}
    assert all(each["metadata"]["labels"]["team"] == "orders" for each in found.everything())


def test_pods_of_hooks_have_what_is_set_for_all_pods_and_nodes_of_their_own() -> None:
    """Without the tolerations of the nodes a pre-install Job stays pending, and so the installation fails."""
    roles = ("tls.roles.enabled=true", "tls.roles.job=true")
    nodes = ("hooks.nodeSelector.pool=system", "hooks.tolerations[0].key=team", "hooks.tolerations[0].operator=Exists")
    found = Rendered(*roles, *nodes, files=("day-two.yaml",))
    for pod in (found["Job", "-role-certificates"]["spec"]["template"]["spec"], found["Pod", "-test"]["spec"]):
        (container,) = pod["containers"]
        assert {"name": "TZ", "value": "UTC"} in container["env"]
        assert pod["priorityClassName"] == "important"
        assert pod["nodeSelector"] == {"pool": "system"}
        assert pod["tolerations"] == [{"key": "team", "operator": "Exists"}]
    # As with `helm upgrade --reuse-values` from a chart without this value.
    earlier = Rendered("hooks=null", *roles)["Job", "-role-certificates"]["spec"]["template"]["spec"]
    assert not {"priorityClassName", "nodeSelector", "tolerations"} & earlier.keys()


def test_constraints_of_a_role_replace_the_spread_of_all() -> None:
    found = Rendered(files=("three-coordinators.yaml",))
    constraints = found["StatefulSet", "-coordinator"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [each["whenUnsatisfiable"] for each in constraints] == ["ScheduleAnyway", "DoNotSchedule"]
    for each in constraints:
        assert each["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "coordinator"
    (first, *_) = found["StatefulSet", "-leader"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert first["topologyKey"] == "kubernetes.io/hostname"


def test_three_coordinators_know_each_other_by_a_service_each() -> None:
    found = Rendered(files=("three-coordinators.yaml",))
    expected = ",".join(f"queues-kshare-coordinator-{ordinal}.team.svc:9190" for ordinal in range(3))
    assert {variables(found.workloads()[role])["KSHARE_COORDINATOR_ADDRESS"] for role in ROLES} == {expected}
    assert variables(found.workloads()["toolbox"])["KSHARE_COORDINATOR"] == expected


# Volumes


def test_volumes_are_kept_unless_a_role_says_otherwise() -> None:
    found = Rendered(files=("day-two.yaml",))
    leader = found["StatefulSet", "-leader"]["spec"]
    assert leader["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    (claim,) = leader["volumeClaimTemplates"]
    assert claim["metadata"]["annotations"] == {"example.com/backup": "nightly"}
    # Kubernetes refuses a change of these labels.
    assert set(claim["metadata"]["labels"]) == {
        f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")
    }
    assert "persistentVolumeClaimRetentionPolicy" not in found["StatefulSet", "-coordinator"]["spec"]


# Addresses of IPv6


def test_with_ipv6_every_service_and_every_listener_has_it() -> None:
    found = Rendered(files=("day-two.yaml",))
    for service in found.of_kind("Service"):
        assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack", service["metadata"]["name"]
        assert service["spec"]["ipFamilies"] == ["IPv6", "IPv4"]
    for role in ROLES:
        told = variables(found.workloads()[role])
        assert told["KSHARE_LISTEN"] == "[::]:9190" and told["KSHARE_METRICS_LISTEN"] == "[::]:9464"
    # Without a host it is every address of both families; [::] would be those of IPv6.
    assert (
        variables(found.workloads()["gateway"])["KSHARE_LISTENERS"] == "PLAINTEXT://:9092,SSL://:9093,EXTERNAL://:9094"
    )
    console = Rendered("console.enabled=true", files=("day-two.yaml",)).workloads()["console"]
    assert variables(console)["KSHARE_CONSOLE_LISTEN"] == "[::]:8080"
    plain = Rendered("console.enabled=true")
    assert "KSHARE_CONSOLE_LISTEN" not in variables(plain.workloads()["console"]), "the image sets it"
    assert not any("ipFamil" in str(service) for service in plain.of_kind("Service"))
    assert "KSHARE_LISTEN" not in variables(plain.workloads()["leader"])


# Toolbox


@pytest.mark.parametrize(
    ("values", "secret"),
    [
        (("tls.roles.enabled=true", "tls.roles.job=true"), "queues-kshare-administrator-roles-tls"),
        (("tls.roles.enabled=true", "tls.roles.secretName=own"), "own"),
    ],
)
def test_the_toolbox_has_what_commands_need(values: tuple[str, ...], secret: str) -> None:
    toolbox = Rendered("toolbox.enabled=true", *values).workloads()["toolbox"]
    volumes = {each["name"]: each for each in toolbox["spec"]["template"]["spec"]["volumes"]}
    assert volumes["roles-tls"]["secret"]["secretName"] == secret
    told = variables(toolbox)
    assert told["KSHARE_BOOTSTRAP"] == "queues-kshare-gateway.team.svc:9092"
    assert told["KSHARE_COORDINATOR"].endswith("-coordinator-0.queues-kshare-coordinator.team.svc:9190")
    assert "toolbox" not in Rendered(*values).workloads(), "it is off by default"


# Traces


def test_traces_go_to_a_receiver_with_tls_and_headers() -> None:
    pod = Rendered(files=("day-two.yaml",))["StatefulSet", "-leader"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    found = {each["name"]: each for each in container["env"]}
    assert found["KSHARE_TRACE_ENDPOINT"]["value"] == "https://otel.example.com:4317"
    assert found["OTEL_EXPORTER_OTLP_CERTIFICATE"]["value"] == "/etc/kshare-tracing/ca.crt"
    assert found["OTEL_EXPORTER_OTLP_HEADERS"]["valueFrom"]["secretKeyRef"] == {
        "name": "otel-headers",
        "key": "headers",
    }
    assert {"name": "tracing", "mountPath": "/etc/kshare-tracing", "readOnly": True} in container["volumeMounts"]
    assert {"name": "tracing", "secret": {"secretName": "otel-ca"}} in pod["volumes"]


# Autoscalers


def test_an_autoscaler_takes_missing_samples_for_an_error_and_not_for_idleness() -> None:
    """With `vector(0)` or null values as 0 a Prometheus without samples would scale share coordinators down."""
    found = Rendered(files=("keda.yaml",))
    assert len(found.of_kind("ScaledObject")) == 3
    for scaled in found.of_kind("ScaledObject"):
        (trigger,) = scaled["spec"]["triggers"]
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        assert "vector(" not in trigger["metadata"]["query"]


def test_the_start_command_of_a_gateway_is_one_that_a_shell_reads() -> None:
    found = Rendered("gateway.external.type=perGateway", "gateway.external.host=h")
    (container,) = found["StatefulSet", "-gateway"]["spec"]["template"]["spec"]["containers"]
    assert shlex.split(container["command"][2])[-4:] == ["python", "-m", "kshare_servicekit.container", "gateway"]
