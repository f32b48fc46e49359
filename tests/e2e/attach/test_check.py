"""`kshare attach BOOTSTRAP --check` on Apache Kafka 3.9.1: what it finds, and that what it proposes helps."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from support.clusters.kshare_cluster import COMMAND
from support.environment.free_ports import free_port
from support.kafka.existing_cluster import ExistingCluster
from support.kafka.tools import ToolRuns

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = 'username="admin" password="admin-s3cret" user_admin="admin-s3cret" user_kshare="kshare-s3cret"'
LISTENER = "listener.name.plaintext.plain.sasl.jaas.config"
GUARDED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    LISTENER: f"{JAAS} {USERS};",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}
"""A cluster with SASL and ACLs; its controller's listener is open, which only its broker knows."""


def check(bootstrap: str, config: Path | None = None) -> tuple[int, str, str]:
    """Exit code, findings and errors."""
    command = [str(COMMAND), "attach", bootstrap, "--check", *(["--config", str(config)] if config else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def attach_ends(bootstrap: str, config: Path, folder: Path) -> tuple[int, list[str]]:
    """Exit code and output of an attach without --check, whose roles are not allowed to begin their work."""
    command = [str(COMMAND), "attach", bootstrap, "--config", str(config), "--data-dir", str(folder)]
    command += ["--listen", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr
    assert [path.name for path in (folder / "run").iterdir()] == [], "no role is ready"
    return done.returncode, done.stdout.splitlines()


def findings(output: str, severity: str) -> list[str]:
    """The findings that do not depend on how busy this machine is."""
    found = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith(severity)]
    return [text for text in found if "acks=all" not in text]


def run_as_printed(cluster: ExistingCluster, command: str, *more: str) -> None:
    """Runs a command of Kafka's shell tools that kshare printed."""
    program, *arguments = shlex.split(command)
    at = arguments.index("--bootstrap-server")
    assert arguments[at + 1] == cluster.bootstrap
    tools = ToolRuns(cluster.bootstrap)
    try:
        tools.text(program.removesuffix(".sh"), *arguments[:at], *arguments[at + 2 :], *more)
    finally:
        tools.close()


def test_three_brokers_that_may_lose_records(tmp_path: Path) -> None:
    unsafe = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    with ExistingCluster(tmp_path, brokers=3, settings=unsafe) as cluster:
        code, output, errors = check(cluster.bootstrap)
        assert (code, errors) == (0, ""), output
        assert "3 brokers with the protocol of Apache Kafka 3.9 or later" in output
        replicas, elections = findings(output, "warning")
        assert replicas.startswith("min.insync.replicas is 1 on brokers 1, 2, 3:")
        assert elections.startswith("unclean.leader.election.enable is true on brokers 1, 2, 3:")
        assert f"--bootstrap-server {cluster.bootstrap} --alter" in output and "min.insync.replicas=2" in output
        assert "a write with acks=all to 3 replicas takes" in output
        assert f"kshare can work with {cluster.bootstrap}: " in output
        for line in output.splitlines():
            if (command := line.strip()).startswith("kafka-configs.sh "):
                run_as_printed(cluster, command)
        code, output, _ = check(cluster.bootstrap)
        assert code == 0 and not findings(output, "warning"), output


def test_a_cluster_with_sasl_and_acls(tmp_path: Path) -> None:
    config = tmp_path / "kshare.properties"
    lines = {
        "kshare.upstream.security.protocol": "SASL_PLAINTEXT",
        "kshare.upstream.sasl.mechanism": "PLAIN",
        "kshare.upstream.sasl.jaas.config": f'{JAAS} username="kshare" password="kshare-s3cret";',
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    with ExistingCluster(tmp_path / "kafka", settings=GUARDED) as cluster:
        code, output, errors = check(cluster.bootstrap)
        assert (code, output) == (1, "") and "security.protocol" in errors and errors.count("\n") == 1
        code, output, errors = check(cluster.bootstrap, config)
        assert code == 1 and not errors
        code, shown = attach_ends(cluster.bootstrap, config, tmp_path / "attached")
        assert (code, shown[-1]) == (1, output.splitlines()[-1])
        assert all(line.startswith(("warning", "refusal", " " * 9 + "kafka-acls.sh")) for line in shown[:-1]), shown
        (refusal,) = findings(output, "refusal")
        assert "TOPIC_AUTHORIZATION_FAILED" in refusal or "CLUSTER_AUTHORIZATION_FAILED" in refusal
        assert f"kshare cannot work with {cluster.bootstrap}: 1 refusal" in output
        admin = tmp_path / "admin.properties"
        admin.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={JAAS} username="admin" password="admin-s3cret";\n'
        )

        def grant(output: str, expected: int) -> None:
            proposed = [line.strip() for line in output.splitlines() if line.strip().startswith("kafka-acls.sh")]
            assert len(proposed) == expected, output
            for command in proposed:
                own = command.replace("User:KSHARE", "User:kshare")
                run_as_printed(cluster, own, "--command-config", str(admin))

        grant(output, 2)
        code, output, errors = check(cluster.bootstrap, config)
        assert (code, errors) == (0, "") and "history" not in output, output
        with config.open("a") as file:
            file.write("kshare.delivery.history.enable=true\n")
        code, output, errors = check(cluster.bootstrap, config)
        assert (code, errors) == (0, "") and "the user lacks Describe on topic __share_delivery_history" in output
        grant(output, 1)
        code, output, errors = check(cluster.bootstrap, config)
        assert (code, errors) == (0, "") and "history can be written" in output, output
        wrong = tmp_path / "wrong.properties"
        wrong.write_text(config.read_text().replace("kshare-s3cret", "another"))
        code, output, errors = check(cluster.bootstrap, wrong)
        assert (code, output) == (1, "") and "user kshare: Authentication failed" in errors and "another" not in errors


def test_a_cluster_that_cannot_be_reached() -> None:
    port = free_port()
    code, output, errors = check(f"127.0.0.1:{port}")
    assert (code, output) == (1, "")
    assert errors.startswith(f"kshare: connecting to broker 127.0.0.1:{port} failed: ") and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("kshare.upstream.security.protocol=TLS\n", "kshare.upstream.security.protocol"),
        ("kshare.upstream.sasl.password=x\n", "kshare.upstream.sasl.password"),
        ("kshare.upstream.security.protocol=SASL_SSL\n", "kshare.upstream.sasl.jaas.config is missing"),
        ("kshare.upstream.ssl.keystore.location=/k\n", "which has no TLS"),
        (f'kshare.upstream.sasl.jaas.config={JAAS} username="a" password="s3cret";\n', "which has no SASL"),
        (
            "kshare.upstream.security.protocol=SASL_PLAINTEXT\nkshare.upstream.sasl.mechanism=SCRAM-SHA-256\n"
            f'kshare.upstream.sasl.jaas.config={JAAS} username="a" password="s3cret";\n',
            "must have a ScramLoginModule",
        ),
        (
            "kshare.upstream.security.protocol=SASL_PLAINTEXT\n"
            f'kshare.upstream.sasl.jaas.config={JAAS} username="a";\n',
            "has no password",
        ),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, lines: str, told: str) -> None:
    config = tmp_path / "kshare.properties"
    config.write_text(lines)
    code, output, errors = check("127.0.0.1:1", config)
    assert (code, output) == (2, "") and errors.count("\n") == 1
    assert f"configuration {config}" in errors and told in errors and "s3cret" not in errors
