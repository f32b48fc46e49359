"""The check of licences and known vulnerabilities finds what it is for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from support.house import dependencies
from support.house.dependencies import Package, licence_problems, locked_packages, vulnerabilities


def distribution(folder: Path, *lines: str) -> Distribution:
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", "Name: Some_Package", "Version: 1", *lines]))
    return PathDistribution(folder)


@pytest.mark.parametrize(
    ("lines", "is_allowed"),
    [
        (["License-Expression: MIT"], True),
        (["License-Expression: GPL-3.0-only OR MIT"], True),
        (["License-Expression: GPL-3.0-only AND MIT"], False),
        (["License-Expression: (GPL-3.0-only OR Apache-2.0) AND MIT"], True),
        (["License-Expression: AGPL-3.0-only"], False),
        (["Classifier: License :: OSI Approved :: MIT License"], True),
        (["Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)"], False),
        (["Classifier: License :: OSI Approved"], False),
        (["License: BSD-3-Clause"], True),
        (["License: all rights reserved"], False),
        ([], False),
    ],
)
def test_licences(tmp_path: Path, lines: list[str], is_allowed: bool) -> None:
    problems = licence_problems([distribution(tmp_path, *lines)])
    assert problems == [] if is_allowed else problems[0].startswith("some-package: the licence ")


@contextmanager
def osv(answers: dict[str, list[str]], asked: list[Package]) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            asked.extend(Package(each["package"]["name"], each["version"]) for each in queries)
            results = [
                {"vulns": [{"id": text} for text in answers[each["package"]["name"]]]}
                if each["package"]["name"] in answers
                else {}
                for each in queries
            ]
            content = json.dumps({"results": results}).encode()
            self.send_response(200 if self.path == "/v1/querybatch" else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *values: object) -> None:
            """Nothing to standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_vulnerabilities_are_told_but_those_that_were_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "ACCEPTED_VULNERABILITIES", {"PYSEC-2": "not used"})
    packages, asked = [Package("h2", "1.0"), Package("rich", "2.0"), Package("attrs", "3.0")], list[Package]()
    with osv({"h2": ["PYSEC-1", "PYSEC-2"], "rich": ["PYSEC-2"]}, asked) as server:
        assert vulnerabilities(packages, server) == {packages[0]: ["PYSEC-1"]}
    assert asked == packages


def test_all_locked_packages_of_a_registry_are_asked_about() -> None:
    packages = locked_packages((dependencies.ROOT / "uv.lock").read_text())
    names = {each.name for each in packages}
    assert {"grpcio", "rocksdict", "cryptography", "pyjwt"} <= names and "kshare-core" not in names


@pytest.mark.parametrize("has_problem", [False, True])
def test_a_vulnerability_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_problem: bool
) -> None:
    with osv({"grpcio": ["PYSEC-1"]} if has_problem else {}, []) as server:
        monkeypatch.setenv("OSV_URL", server)
        assert dependencies.main() == int(has_problem)
    assert ("PYSEC-1" in capsys.readouterr().err) is has_problem


def test_without_data_the_check_says_that_it_was_not_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSV_URL", "http://127.0.0.1:9")
    assert dependencies.main() == 0
    assert "known vulnerabilities were not checked" in capsys.readouterr().out
