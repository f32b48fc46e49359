"""The Job that makes the roles' certificates, against a server that keeps objects as Kubernetes' API does."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from kshare_servicekit.kubernetes_api import KubernetesApi
from kshare_servicekit.tls.role_secrets import ROLES, make_secrets

LABELS = {"app.kubernetes.io/instance": "queues"}
AUTHORITY = "queues-kshare-roles-authority"
Secrets = dict[str, dict[str, Any]]


@contextmanager
def kubernetes_api(folder: Path, secrets: Secrets) -> Iterator[KubernetesApi]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            self.answer(200 if name in secrets else 404, secrets.get(name, {}))

        def do_POST(self) -> None:
            body = self.body()
            name = body["metadata"]["name"]
            if name in secrets:
                return self.answer(409, {})
            secrets[name] = body
            return self.answer(201, body)

        def do_PUT(self) -> None:
            body = self.body()
            secrets[body["metadata"]["name"]] = body
            self.answer(200, body)

        def body(self) -> dict[str, Any]:
            assert self.path.startswith("/api/v1/namespaces/work/secrets")
            found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            return found

        def answer(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *values: object) -> None:
            """Nothing to standard error."""

    (folder / "namespace").write_text("work")
    (folder / "token").write_text("secret")
    (folder / "ca.crt").write_bytes(Path("/etc/ssl/certs/ca-certificates.crt").read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield KubernetesApi(folder, f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def secret_of(role: str) -> str:
    return f"queues-kshare-{role}-roles-tls"


def certificate(secret: dict[str, Any], key: str = "tls.crt") -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"][key]))


def test_each_role_gets_a_certificate_that_names_it(tmp_path: Path) -> None:
    secrets: Secrets = {}
    with kubernetes_api(tmp_path, secrets) as api:
        made = make_secrets(api, "queues-kshare", LABELS)
    assert made == [AUTHORITY, *map(secret_of, ROLES)] == list(secrets)
    for role, named in ROLES.items():
        secret = secrets[secret_of(role)]
        assert secret["metadata"]["labels"] == LABELS
        assert "tls.key" in secret["data"] and set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt"}
        assert certificate(secret, "ca.crt") == certificate(secrets[AUTHORITY])
        certificate(secret).verify_directly_issued_by(certificate(secrets[AUTHORITY]))
        names = certificate(secret).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        assert uris == [f"kshare://role/{name}" for name in named]
        of_all = ["queues-kshare-coordinators.work.svc"] if role == "coordinator" else []
        assert names.get_values_for_type(x509.DNSName) == [f"*.queues-kshare-{role}.work.svc", *of_all]


def test_what_fits_stays(tmp_path: Path) -> None:
    secrets: Secrets = {}
    with kubernetes_api(tmp_path, secrets) as api:
        make_secrets(api, "queues-kshare", LABELS)
        before = json.dumps(secrets)
        assert make_secrets(api, "queues-kshare", LABELS) == []
    assert json.dumps(secrets) == before


@pytest.mark.parametrize("change", ["deleted", "another authority", "not a certificate", "no authority in it"])
def test_what_does_not_fit_is_made_again_by_the_same_authority(tmp_path: Path, change: str) -> None:
    secrets: Secrets = {}
    name = secret_of("leader")
    with kubernetes_api(tmp_path, secrets) as api:
        make_secrets(api, "queues-kshare", LABELS)
        authority = certificate(secrets[AUTHORITY])
        if change == "deleted":
            del secrets[name]
        elif change == "another authority":
            del secrets[AUTHORITY]
            make_secrets(api, "queues-kshare", LABELS)
            authority = certificate(secrets[AUTHORITY])
        elif change == "not a certificate":
            secrets[name]["data"]["tls.crt"] = base64.b64encode(b"nothing").decode()
        else:
            del secrets[name]["data"]["ca.crt"]
        others = [secret_of(role) for role in ROLES if role != "leader"] if change == "another authority" else []
        expected = [] if change == "another authority" else [name]
        assert make_secrets(api, "queues-kshare", LABELS) == expected
    for each in [name, *others]:
        certificate(secrets[each]).verify_directly_issued_by(authority)


def test_a_damaged_authority_is_named(tmp_path: Path) -> None:
    secrets: Secrets = {AUTHORITY: {"metadata": {"name": AUTHORITY}, "data": {"tls.crt": "AAAA"}}}
    with kubernetes_api(tmp_path, secrets) as api, pytest.raises(ValueError, match=r"roles-authority has no tls\.key"):
        make_secrets(api, "queues-kshare", LABELS)
