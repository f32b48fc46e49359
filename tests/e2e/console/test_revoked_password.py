"""A password that was changed, or whose user was deleted, does not sign in to the console any more."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from support.clients.console_client import ConsoleClient
from support.clients.delivery import wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.environment.free_ports import free_port

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OLD, NEW = "old-s3cret", "new-s3cret"


def settings(port: int) -> dict[str, str]:
    """A listener for the administrator, and one with SCRAM, which the console uses."""
    return {
        "listeners": f"OPEN://127.0.0.1:{port},USERS://127.0.0.1:{free_port()}",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.users.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }


def alter(admin: AdminClient, change: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(30)


def set_password(admin: AdminClient, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    alter(admin, UserScramCredentialUpsertion("alice", info, password.encode()))


def signed_in(address: str, password: str) -> ConsoleClient:
    """A browser that is signed in as alice."""
    browser = ConsoleClient(address)
    assert browser.sign_in("alice", password).status == 200
    return browser


def is_refused(address: str, password: str) -> bool:
    answer = ConsoleClient(address).sign_in("alice", password)
    return (answer.status, answer.body.get("code")) == (401, "SASL_AUTHENTICATION_FAILED")


def test_a_revoked_password_does_not_sign_in(tmp_path: Path) -> None:
    port = free_port()
    with KshareCluster(tmp_path, settings(port), port=port, options=("--console", "127.0.0.1:0")) as cluster:
        ready = cluster.data_dir / "run/console.ready"
        wait_for(ready.exists, "the console is ready")
        address = dict(line.partition("=")[::2] for line in ready.read_text().splitlines())["address"]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        set_password(admin, OLD)
        before = signed_in(address, OLD)
        assert before.request("GET", "/api/topics").status == 200

        set_password(admin, NEW)
        after = signed_in(address, NEW)
        assert is_refused(address, OLD)
        assert before.request("GET", "/api/topics").status == 401
        assert after.request("GET", "/api/topics").status == 200

        alter(admin, UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256))
        assert is_refused(address, NEW)
        assert after.request("GET", "/api/topics").status == 401
