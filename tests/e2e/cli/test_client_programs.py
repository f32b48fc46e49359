"""`make test-client-configs`: the workers that `kshare client-config` prints, built and run against a live cluster.

Each takes a record and has accepted it afterwards: the group's lag is 0. The listeners are PLAINTEXT, TLS with client
certificates, SASL with PLAIN, and SASL over TLS with SCRAM. Node's producer is left out: its client is a native library
that npm fetches from GitHub or builds with a C++ toolchain.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from kshare.commands.cluster.client_config import Language, Target, program
from kshare.failure import CommandFailed
from support.clients.delivery import new_group, new_topic, produce, wait_for
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port
from support.environment.installation import INSTALL_TIMEOUT_S, alone, cache_folder
from support.environment.unavailable import unavailable
from support.kafka.java import kafka_jars, require_java

pytestmark = pytest.mark.client_programs

LIMIT_S = 60.0
PLAIN_USER, SCRAM_USER = "worker", 'worker "7"'
PASSWORD, KEY_PASSWORD = 'pass\\word"1', "key-password"
SECRETS = {"KAFKA_PASSWORD": PASSWORD, "KAFKA_KEY_PASSWORD": KEY_PASSWORD}
LISTENERS = {"PLAINTEXT": "PLAINTEXT", "MUTUAL": "SSL", "SASL": "SASL_PLAINTEXT", "SECURE": "SASL_SSL"}
WORKERS = (Language.PYTHON, Language.JAVA, Language.GO)
MODULES = "org.apache.kafka.common.security"


CONNECTIONS = ("plaintext", "certificate", "combined", "encrypted key", "plain", "scram")


class Listening:
    """The cluster, and what a client has to say at each of its listeners."""

    def __init__(self, cluster: KshareCluster, ports: dict[str, int], folder: Path, authority: Authority) -> None:
        self.cluster = cluster
        self._ports = ports
        issued = authority.issue("a client")
        self._combined = str(issued.write_combined(folder / "combined.pem"))
        self._certificate, self._key, self._encrypted, self._authority = (
            str(folder / name) for name in ("client.pem", "client.key", "encrypted.key", "ca.pem")
        )
        Path(self._certificate).write_text(issued.certificate_pem)
        Path(self._key).write_text(issued.key_pem())
        encrypt = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-in", self._key, "-out", self._encrypted]
        run([*encrypt, "-passout", f"pass:{KEY_PASSWORD}"], folder)

    def client(self, connection: str) -> tuple[str, dict[str, str]]:
        """Bootstrap servers and properties."""
        tls = {"ssl.ca.location": self._authority}
        mutual = {**tls, "security.protocol": "ssl"}
        separate = {**mutual, "ssl.certificate.location": self._certificate}
        listener, properties = {
            "plaintext": ("PLAINTEXT", {}),
            "certificate": ("MUTUAL", {**separate, "ssl.key.location": self._key}),
            "combined": (
                "MUTUAL",
                {**mutual, "ssl.certificate.location": self._combined, "ssl.key.location": self._combined},
            ),
            "encrypted key": (
                "MUTUAL",
                {**separate, "ssl.key.location": self._encrypted, "ssl.key.password": KEY_PASSWORD},
            ),
            "plain": ("SASL", {"security.protocol": "sasl_plaintext", **user("PLAIN", PLAIN_USER)}),
            "scram": ("SECURE", {**tls, "security.protocol": "SASL_SSL", **user("SCRAM-SHA-512", SCRAM_USER)}),
        }[connection]
        return f"localhost:{self._ports[listener]}", properties


def user(mechanism: str, name: str) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": PASSWORD}


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    folder = tmp_path_factory.mktemp("programs")
    ports = {name: free_port() for name in LISTENERS}
    authority = Authority("kshare")
    authority.write(folder / "ca.pem")
    authority.issue("localhost").write_combined(folder / "server.pem")
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")  # for JAAS, then for the file
    jaas_user = f'user_{PLAIN_USER}="{quoted}"'
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required {jaas_user};",
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        "kshare.rpc.ssl.keystore.location": str(authority.issue("role").write_combined(folder / "role.pem")),
        "kshare.rpc.ssl.truststore.location": str(folder / "ca.pem"),
    }
    plaintext = ports["PLAINTEXT"]
    with KshareCluster(folder / "kshare", settings, port=plaintext, engine=TestEngine.EMBEDDED) as cluster:
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(SCRAM_USER, credential, PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.alter_user_scram_credentials([upsertion])[SCRAM_USER].result(LIMIT_S)
        yield Listening(cluster, ports, folder, authority)


def started_with(language: Language, text: str, folder: Path) -> Sequence[str]:
    """The command that runs the program, once it is built."""
    if language is Language.PYTHON:
        (folder / "worker.py").write_text(text)
        return [sys.executable, "-u", str(folder / "worker.py")]
    if language is Language.JAVA:
        source = folder / "Worker.java"
        source.write_text(text)
        return [require_java(), "-cp", f"{kafka_jars()}/*", str(source)]
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if go is None:
        unavailable("go is missing (https://go.dev/dl)")
    module = cache_folder() / "go-worker"
    module.mkdir(exist_ok=True)
    get = next(line for line in text.splitlines() if line.startswith("// go get ")).removeprefix("// go get ")
    with alone("go-worker"):
        (module / "main.go").write_text(text)
        if not (module / "go.mod").exists():
            run([go, "mod", "init", "example.org/worker"], module)
            run([go, "get", get], module)
        run([go, "mod", "tidy"], module)
        run([go, "vet", "."], module)
        run([go, "build", "-o", str(folder / "worker"), "."], module)
    return [str(folder / "worker")]


def run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The program, and the lines that it printed until now."""
    printed: list[str] = []

    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **SECRETS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_collect, args=(process.stdout, printed))
        reader.start()
        try:
            yield process, printed
        finally:
            process.kill()
            reader.join(LIMIT_S)


def _collect(lines: Iterable[str], printed: list[str]) -> None:
    for line in lines:
        printed.append(line.rstrip("\n"))


def lag(cluster: KshareCluster, group: str) -> int | None:
    command = [str(COMMAND), "groups", "describe", group, "--output", "json", "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found: int | None = json.loads(done.stdout)["lag"]
    return found


@pytest.mark.parametrize("language", WORKERS)
@pytest.mark.parametrize("connection", CONNECTIONS)
def test_the_worker_accepts_a_record(listening: Listening, tmp_path: Path, language: Language, connection: str) -> None:
    bootstrap, properties = listening.client(connection)
    cluster, value = listening.cluster, f"a value {uuid.uuid4()}"
    topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
    produce(cluster.bootstrap, topic, [value])
    target = Target(bootstrap, properties, topic, group)
    if (language, connection) == (Language.GO, "encrypted key"):
        with pytest.raises(CommandFailed, match="reads no encrypted key"):
            program(language, target)
        return
    command = started_with(language, program(language, target), tmp_path)
    with running(command, tmp_path) as (process, printed):
        wait_for(lambda: value in printed or process.poll() is not None, "the worker prints the record", LIMIT_S)
        assert value in printed, "\n".join(printed)
        wait_for(lambda: lag(cluster, group) == 0, "the record is accepted", LIMIT_S)
