"""A pod's calls to Kubernetes' API, with its service account."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HTTP_TIMEOUT_S = 5.0
NOT_FOUND, CONFLICT = 404, 409


class KubernetesApi:
    """The objects of the pod's own namespace; all calls raise OSError or ValueError."""

    def __init__(self, account: Path = ACCOUNT, server: str | None = None) -> None:
        """`server`: its URL; the environment of a pod has it."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if server is None and not host:
            raise OSError("KUBERNETES_SERVICE_HOST is not set: this is not a pod")
        self._server = server or f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self.namespace = (account / "namespace").read_text(encoding="ascii").strip()
        self._headers = {
            "Authorization": f"Bearer {(account / 'token').read_text(encoding='ascii').strip()}",
            "Content-Type": "application/json",
        }
        self._context = ssl.create_default_context(cafile=str(account / "ca.crt"))

    def get(self, group: str, kind: str, name: str) -> dict[str, Any] | None:
        """An object such as ("apis/apps/v1", "statefulsets", "leader"); None if there is none."""
        try:
            return self._call("GET", group, kind, f"/{name}")
        except urllib.error.HTTPError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    def create(self, group: str, kind: str, body: dict[str, Any]) -> bool:
        """Whether it was created: False if there is one of its name."""
        try:
            self._call("POST", group, kind, "", body)
        except urllib.error.HTTPError as error:
            if error.code == CONFLICT:
                return False
            raise
        return True

    def replace(self, group: str, kind: str, body: dict[str, Any]) -> None:
        self._call("PUT", group, kind, f"/{body['metadata']['name']}", body)

    def _call(
        self, method: str, group: str, kind: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        url = f"{self._server}/{group}/namespaces/{self.namespace}/{kind}{path}"
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, content, self._headers, method=method)
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S, context=self._context) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
