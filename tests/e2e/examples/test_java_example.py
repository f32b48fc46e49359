"""The Java worker of examples/, built by Maven and run as its README says, against the four processes."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.clients.delivery import wait_for
from support.clients.examples import EXAMPLES, LIMIT_S, command_lines, run, worker
from support.environment.installation import INSTALL_TIMEOUT_S, alone
from support.kafka.java import require_java

ENDED_BY_SIGTERM = 143
"""Of a JVM whose shutdown hooks ran."""


def test_java_worker_accepts_each_order_and_releases_one_that_fails(bootstrap: str, tmp_path: Path) -> None:
    require_java()
    shutil.copytree(
        EXAMPLES / "java-worker", tmp_path / "examples" / "java-worker", ignore=shutil.ignore_patterns("target")
    )
    *preparation, start = command_lines("java-worker")
    for line in [*preparation, '.venv/bin/kshare produce orders ""']:
        run(line, bootstrap)
    with alone():  # Maven fetches its plugins at the first time
        run(
            "mvn --quiet --file examples/java-worker/pom.xml compile",
            bootstrap,
            folder=tmp_path,
            timeout_s=INSTALL_TIMEOUT_S,
        )
    own = f"-Dexec.args={bootstrap} orders shipping"
    with worker(start, bootstrap, own, folder=tmp_path, exit_code=ENDED_BY_SIGTERM) as printed:
        wanted = {"processed first order", "processed second order", "failed at delivery 2: an order without a text"}
        wait_for(lambda: wanted <= set(printed), "the worker prints each outcome", LIMIT_S)
    processed = [line for line in printed if line.startswith("processed")]
    assert sorted(processed) == ["processed first order", "processed second order"], "each is accepted once"
    assert "failed at delivery 1: an order without a text" in printed
