"""A `kshare up` whose only listener asks for SASL: it becomes ready, and commands work with --command-config.

In front of an existing cluster it is that cluster which authenticates them.
What is missing is said in one line: credentials for the listener, a certificate for the roles' own ports.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from support.clusters.engines import TestEngine, engine_of_tests
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.environment.free_ports import free_port
from support.kafka.authorized_pair import AUTHORIZER
from support.kafka.existing_cluster import ExistingCluster

MODULES = "org.apache.kafka.common.security"
COMMANDS = [
    ["topics", "list"],
    ["groups", "set", "g", "share.auto.offset.reset=earliest"],
    ["groups", "list"],
    ["produce", "t", "value"],
    ["peek", "t"],
]
CALLS_TO_ROLES = [["nodes"], ["partitions", "list"], ["state", "partitions"]]
IS_A_SUPER_USER = "admin"
SUPER_USERS = {"super.users": f"User:{IS_A_SUPER_USER}"}
OF_KSHARE = {
    "kshare.upstream.security.protocol": "SASL_PLAINTEXT",
    "kshare.upstream.sasl.jaas.config": (
        f'{MODULES}.plain.PlainLoginModule required username="kshare" password="own-s3cret";'
    ),
}
"""kshare's own user at an existing cluster."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    folder, port = tmp_path_factory.mktemp("sasl-only"), free_port()
    listener = {"listeners": f"ONLY://127.0.0.1:{port}", "listener.security.protocol.map": "ONLY:SASL_PLAINTEXT"}
    with ExitStack() as stack:
        if engine_of_tests() is TestEngine.EMBEDDED:
            settings = {**AUTHORIZER, **SUPER_USERS, **mechanisms("only"), **listener}
            yield stack.enter_context(KshareCluster(folder, settings, port=port))
        else:
            upstream = stack.enter_context(ExistingCluster(folder / "upstream", settings=upstream_settings()))
            settings = {**listener, **OF_KSHARE}
            yield stack.enter_context(KshareCluster(folder, settings, port=port, upstream=upstream))


def mechanisms(listener: str, of_plain: str = 'user_admin="s3cret"') -> dict[str, str]:
    """Those of a listener that knows the super user."""
    jaas = f"listener.name.{listener}.{{}}.sasl.jaas.config"
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        jaas.format("plain"): f"{MODULES}.plain.PlainLoginModule required {of_plain};",
        jaas.format("scram-sha-256"): f"{MODULES}.scram.ScramLoginModule required;",
        jaas.format("scram-sha-512"): f"{MODULES}.scram.ScramLoginModule required;",
    }


def upstream_settings() -> dict[str, str]:
    """An existing cluster with the same mechanisms and super users, and kshare's own user."""
    brokers_own = 'username="admin" password="s3cret"'
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "authorizer.class.name": AUTHORIZER["authorizer.class.name"],
        "super.users": f"User:ANONYMOUS;{SUPER_USERS['super.users']};User:kshare",
        **mechanisms("plaintext", f'{brokers_own} user_admin="s3cret" user_kshare="own-s3cret"'),
    }


@pytest.fixture(scope="module")
def with_plain(cluster: KshareCluster) -> Path:
    return command_config(cluster, "PLAIN", "s3cret")


def command_config(cluster: KshareCluster, mechanism: str, password: str) -> Path:
    path = cluster.folder / f"{mechanism}-{password}.properties"
    lines = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": IS_A_SUPER_USER,
        "sasl.password": password,
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def kshare(cluster: KshareCluster, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command on this cluster."""
    command = [str(COMMAND), *arguments, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_commands_work_with_credentials(cluster: KshareCluster, with_plain: Path) -> None:
    code, output, errors = kshare(cluster, "topics", "create", "t", "--command-config", str(with_plain))
    assert (code, errors) == (0, ""), output
    for arguments in COMMANDS:
        code, output, errors = kshare(cluster, *arguments, "--command-config", str(with_plain))
        assert code == 0, f"{arguments}: {errors}"
    code, output, _ = kshare(cluster, "topics", "list", "--command-config", str(with_plain))
    assert code == 0 and " t " in output


@pytest.mark.parametrize("arguments", [*COMMANDS, ["nodes"]], ids=" ".join)
def test_without_credentials_a_command_says_what_to_give(cluster: KshareCluster, arguments: list[str]) -> None:
    code, output, errors = kshare(cluster, *arguments)
    assert (code, output) == (1, "") and errors.count("\n") == 1
    assert "closed the connection" in errors and "--command-config" in errors


@pytest.mark.parametrize("arguments", CALLS_TO_ROLES, ids=" ".join)
def test_roles_want_a_certificate(cluster: KshareCluster, with_plain: Path, arguments: list[str]) -> None:
    code, output, errors = kshare(cluster, *arguments, "--command-config", str(with_plain))
    assert (code, output) == (1, "") and errors.count("\n") == 1
    assert "--data-dir" in errors and "KSHARE_CONFIG" in errors
    data_dir = ["--data-dir", str(cluster.data_dir)]
    command = [str(COMMAND), *arguments, *data_dir, "--command-config", str(with_plain)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(cluster: KshareCluster, with_plain: Path, mechanism: str) -> None:
    """The user's credentials are made over the listener itself, by the user that PLAIN knows."""
    settings = dict(line.split("=", 1) for line in with_plain.read_text().splitlines())
    administrator = AdminClient({"bootstrap.servers": cluster.bootstrap, **settings})
    kind = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096)
    made = UserScramCredentialUpsertion(IS_A_SUPER_USER, kind, f"of-{mechanism}".encode())
    for future in administrator.alter_user_scram_credentials([made]).values():
        future.result(30)
    right = command_config(cluster, mechanism, f"of-{mechanism}")
    code, _, errors = kshare(cluster, "topics", "list", "--command-config", str(right))
    assert (code, errors) == (0, "")
    wrong = command_config(cluster, mechanism, "another")
    code, output, errors = kshare(cluster, "topics", "list", "--command-config", str(wrong))
    assert (code, output) == (1, "") and "Authentication failed" in errors and "another" not in errors


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"security.protocol": "sasl"}, "security.protocol must be one of plaintext, ssl, sasl_plaintext, sasl_ssl"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl.password": None}, "no sasl.password"),
        ({"sasl.password": "wrong"}, "Authentication failed"),
    ],
)
def test_a_wrong_command_config(
    cluster: KshareCluster, with_plain: Path, tmp_path: Path, changed: dict[str, str | None], told: str
) -> None:
    settings = dict(line.split("=", 1) for line in with_plain.read_text().splitlines())
    lines = {name: value for name, value in {**settings, **changed}.items() if value is not None}
    path = tmp_path / "command.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    code, output, errors = kshare(cluster, "topics", "list", "--command-config", str(path))
    assert code != 0 and output == "" and errors.count("\n") == 1
    assert told in errors and "s3cret" not in errors


def test_no_line_of_the_log_is_about_probes(cluster: KshareCluster) -> None:
    """`kshare up` finds out by itself that its gateway serves, without a request that the listener refuses."""
    starting = cluster.log_text().partition("kshare listens on")[0]
    assert "authenticated" not in starting
