"""A Job of the Helm chart: `python -m kshare_servicekit.tls.role_secrets FULLNAME [LABEL=VALUE …]`.

It makes the Secret of a private authority, once, and for each role a Secret with a certificate that names the role and
is signed by it. Secrets that are there and fit stay as they are, so an upgrade changes nothing; one that was deleted is
made again. Pods read a new certificate without a restart.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography import x509

from kshare_servicekit.kubernetes_api import KubernetesApi
from kshare_servicekit.tls.role_authority import KeyPair, RoleAuthority

ROLES: Mapping[str, Sequence[str]] = {
    "coordinator": ("coordinator",),
    "share-coordinator": ("share_coordinator",),
    "leader": ("leader",),
    "gateway": ("gateway",),
    "administrator": ("administrator",),
}
"""What certificates name, by the role's part in the names of its objects; administrators run commands of `kshare`."""
CORE = "api/v1"
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"


def make_secrets(api: KubernetesApi, fullname: str, labels: Mapping[str, str]) -> list[str]:
    """Makes what is missing; returns the names of the Secrets that were made. OSError or ValueError."""
    name = f"{fullname}-roles-authority"
    made: list[str] = []
    if api.get(CORE, "secrets", name) is None:
        pair = RoleAuthority.create().pair
        if api.create(CORE, "secrets", _secret(name, labels, {CERTIFICATE: pair.certificate_pem, KEY: pair.key_pem})):
            made.append(name)
    stored = api.get(CORE, "secrets", name)
    if stored is None:
        raise OSError(f"the Secret {name} was deleted meanwhile")
    pair = KeyPair(_text(stored, CERTIFICATE), _text(stored, KEY))
    authority = RoleAuthority.of(pair)
    for role, named in ROLES.items():
        secret_name, hosts = f"{fullname}-{role}-roles-tls", [f"*.{fullname}-{role}.{api.namespace}.svc"]
        if role == "coordinator":  # the Service of all coordinators, with kshare.engine=kafka
            hosts.append(f"{fullname}-coordinators.{api.namespace}.svc")
        found = api.get(CORE, "secrets", secret_name)
        if found is not None and _fits(found, pair, hosts):
            continue
        issued = authority.issue(named, names=hosts)
        texts = {CERTIFICATE: issued.certificate_pem, KEY: issued.key_pem, AUTHORITY: pair.certificate_pem}
        secret = _secret(secret_name, labels, texts)
        if found is not None or not api.create(CORE, "secrets", secret):
            api.replace(CORE, "secrets", secret)
        made.append(secret_name)
    return made


def _fits(secret: dict[str, Any], authority: KeyPair, hosts: Sequence[str]) -> bool:
    """Whether the authority signed its certificate, and for these hosts."""
    try:
        certificate = x509.load_pem_x509_certificate(_text(secret, CERTIFICATE).encode())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate_pem.encode()))
        is_told = _text(secret, AUTHORITY) == authority.certificate_pem
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # whatever is wrong with it, a new one is made
        return False
    return is_told and set(hosts) <= set(names.get_values_for_type(x509.DNSName))


def _text(secret: dict[str, Any], key: str) -> str:
    try:
        return base64.b64decode(secret["data"][key], validate=True).decode()
    except (KeyError, binascii.Error) as error:
        raise ValueError(f"the Secret {secret.get('metadata', {}).get('name')} has no {key}: {error!r}") from error


def _secret(name: str, labels: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "labels": dict(labels)},
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the Job; exit code 1: standard error says what is wrong."""
    if not arguments or not all("=" in argument for argument in arguments[1:]):
        sys.stderr.write("usage: python -m kshare_servicekit.tls.role_secrets FULLNAME [LABEL=VALUE ...]\n")
        return 2
    labels = dict(argument.split("=", 1) for argument in arguments[1:])
    try:
        made = make_secrets(KubernetesApi(), arguments[0], labels)
    except (OSError, ValueError) as problem:
        sys.stderr.write(f"cannot make the roles' certificates: {problem}\n")
        return 1
    sys.stdout.write(f"made: {', '.join(made) or 'nothing, all Secrets fit'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
