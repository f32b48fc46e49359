"""A check of what is installed: every licence is known and allowed, and no version has a known vulnerability.

Licences are those that the installed distributions declare. Vulnerabilities are asked of OSV (https://osv.dev), for the
versions of uv.lock; where OSV cannot be reached, as behind a proxy that lets through package registries only, the check
says so and goes on. OSV_URL is another server with its interface.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
OSV = "https://api.osv.dev"
OSV_TIMEOUT_S = 10.0

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"),
        *("Apache Software License", "BSD License", "ISC License (ISCL)", "MIT License", "3-Clause BSD License"),
        *("Apache License 2.0", "Python Software Foundation License"),
    }
)
"""SPDX names, and those of classifiers; all of them allow use in a product of any licence."""
EXCEPTIONS: Mapping[str, str] = {
    "certifi": "MPL-2.0: a list of authorities, used unchanged",
    "crc32c": "LGPL-2.1-or-later: a shared library, used unchanged and replaceable",
    "docutils": "public domain but for a few files under BSD and GPL that are not used; only for the docs",
    "hypothesis": "MPL-2.0: only for tests",
    "pathspec": "MPL-2.0: only for the type checker",
}
"""Distributions with other licences, and why they may be used."""
ACCEPTED_VULNERABILITIES: Mapping[str, str] = {}
"""Identifiers of OSV, and why they do not concern kshare."""


class Package(NamedTuple):
    name: str
    version: str


def licence_problems(installed: Iterable[Distribution]) -> list[str]:
    """Distributions whose licence is not allowed, or not declared."""
    problems = []
    for distribution in installed:
        name = distribution.name.lower().replace("_", "-")
        licences = licences_of(distribution)
        if name not in EXCEPTIONS and not (licences and set(licences) <= ALLOWED):
            told = " and ".join(licences) or "not declared"
            problems.append(f"{name}: the licence {told} is not among those that are allowed")
    return problems


def licences_of(distribution: Distribution) -> list[str]:
    """Of alternatives ("A OR B") an allowed one, if there is one."""
    metadata = distribution.metadata
    expressions = metadata.get_all("License-Expression")
    if expressions:
        found = []
        for part in expressions[0].split(" AND "):
            alternatives = [text.strip("() ") for text in part.split(" OR ")]
            found.append(next((each for each in alternatives if each in ALLOWED), part))
        return found
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    names = [text.rpartition("::")[2].strip() for text in classifiers]
    names = [name for name in names if name not in ("OSI Approved", "DFSG approved")]
    texts = [text.strip().splitlines()[0] for text in metadata.get_all("License") or [] if text.strip()]
    return names or texts[:1]


def locked_packages(lock: str) -> list[Package]:
    """The packages of a registry in the text of uv.lock."""
    return [
        Package(each["name"], each["version"])
        for each in tomllib.loads(lock)["package"]
        if "registry" in each.get("source", {})
    ]


def vulnerabilities(packages: Sequence[Package], server: str) -> dict[Package, list[str]]:
    """The identifiers of known vulnerabilities by package; OSError where the server does not answer."""
    queries = [{"package": {"name": each.name, "ecosystem": "PyPI"}, "version": each.version} for each in packages]
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(f"{server}/v1/querybatch", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=OSV_TIMEOUT_S) as answer:
        results = json.load(answer)["results"]
    if len(results) != len(packages):
        raise OSError(f"{server} answered {len(results)} of {len(packages)} queries")
    found = {
        package: [each["id"] for each in result.get("vulns", ()) if each["id"] not in ACCEPTED_VULNERABILITIES]
        for package, result in zip(packages, results, strict=True)
    }
    return {package: identifiers for package, identifiers in found.items() if identifiers}


def main() -> int:
    problems = licence_problems(distributions())
    server = os.environ.get("OSV_URL", OSV)
    packages = locked_packages((ROOT / "uv.lock").read_text(encoding="utf-8"))
    try:
        for package, identifiers in vulnerabilities(packages, server).items():
            told = ", ".join(identifiers)
            problems.append(f"{package.name} {package.version}: {told}; update it, or say why it does not concern us")
    except (OSError, ValueError, KeyError) as error:
        reason = re.sub(r"\s+", " ", str(error))
        sys.stdout.write(f"known vulnerabilities were not checked: {server} did not answer ({reason})\n")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
