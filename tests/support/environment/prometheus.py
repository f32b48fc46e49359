"""Prometheus and promtool for tests: those on the PATH, else Debian's package, unpacked into the user's cache.

The package is not installed, so no service of it starts. Where neither is possible, Missing says what to do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support.environment.free_ports import free_port
from support.environment.installation import INSTALL_TIMEOUT_S, Missing, alone, cache_folder

START_TIMEOUT_S = 30


def binary(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    found = shutil.which(name)
    if found:
        return found
    cache = cache_folder() / "prometheus"
    path = cache / "root/usr/bin" / name
    with alone():
        if not path.exists():
            _unpack(cache)
    return str(path)


def _unpack(cache: Path) -> None:
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise Missing("this test needs prometheus and promtool on the PATH (Debian's package prometheus)")
    cache.mkdir(parents=True, exist_ok=True)
    for command in (["apt-get", "-q", "update"], ["apt-get", "-q", "download", "prometheus"]):
        subprocess.run(command, cwd=cache, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
    (package,) = cache.glob("prometheus_*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(cache / "root")], check=True, timeout=INSTALL_TIMEOUT_S)
    package.unlink()


class PrometheusAnswers:
    """What the server at "host:port" answers."""

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and values of an instant query."""
        arguments = urllib.parse.urlencode({"query": expression})
        answer = self._get(f"/api/v1/query?{arguments}")
        assert answer["status"] == "success", answer
        return [(sample["metric"], float(sample["value"][1])) for sample in answer["data"]["result"]]

    def exemplars(self, expression: str) -> list[dict[str, str]]:
        """The labels of all exemplars of the series in an expression, of the last minutes."""
        now = time.time()
        arguments = urllib.parse.urlencode({"query": expression, "start": now - 600, "end": now + 60})
        answer = self._get(f"/api/v1/query_exemplars?{arguments}")
        assert answer["status"] == "success", answer
        return [exemplar["labels"] for series in answer["data"] for exemplar in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """All alerting and recording rules, with the health of their last evaluation."""
        answer = self._get("/api/v1/rules")
        assert answer["status"] == "success", answer
        return [rule for group in answer["data"]["groups"] for rule in group["rules"]]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=10) as answer:
            return json.load(answer)

    def value(self, expression: str) -> float | None:
        """Of a query with one sample; None where it has none, or nobody answers yet."""
        try:
            found = self.query(expression)
        except OSError:
            return None
        return found[0][1] if found else None


class Prometheus(PrometheusAnswers):
    """A server on 127.0.0.1 that scrapes `targets` every second; a context manager.

    All samples get `labels`, as those that the chart's PodMonitor gives. `jobs` are scrape configs in place of both.
    """

    def __init__(
        self,
        folder: Path,
        targets: Sequence[str] = (),
        rules: Path | Sequence[Path] = (),
        labels: Mapping[str, str] | None = None,
        jobs: Sequence[Mapping[str, object]] = (),
    ) -> None:
        self._folder = folder
        super().__init__(f"127.0.0.1:{free_port()}")
        folder.mkdir(parents=True)
        own = {"job_name": "kshare", "static_configs": [{"targets": list(targets), "labels": dict(labels or {})}]}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [*jobs] or [own],
            "rule_files": [str(each) for each in ([rules] if isinstance(rules, Path) else rules)],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        command = [binary("prometheus"), f"--config.file={self._folder}/prometheus.yml"]
        command += ["--enable-feature=exemplar-storage"]
        command += [f"--storage.tsdb.path={self._folder}/data", f"--web.listen-address={self._address}"]
        with (self._folder / "log").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            assert self._process.poll() is None and time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(START_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=1):
                return True
        except OSError:
            return False
