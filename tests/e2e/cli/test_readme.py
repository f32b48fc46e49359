"""The quickstarts of the README: every line of them runs, in its order, and does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from support.clients.administration import create_topic, read_from_earliest
from support.environment.free_ports import free_port
from support.kafka.existing_cluster import ExistingCluster

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
LIMIT_S = 60
PYTHON_FENCE = "```python\n"


def use_it() -> str:
    """The section "Use it" up to the dead letters' lines."""
    text = (ROOT / "README.md").read_text()
    return text[text.index("## Use it") : text.index("What is stored about a share group")]


def on_your_cluster() -> str:
    """The section "On the Kafka cluster that you have"."""
    text = (ROOT / "README.md").read_text()
    return text[text.index("## On the Kafka cluster") : text.index("## Use it")]


def command_lines(section: str) -> list[str]:
    """The indented lines outside of fenced code, with the environment's commands in place of .venv/bin's."""
    outside = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    return [line.strip() for line in outside.splitlines() if line.startswith("    ")]


def run(line: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running(line: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """`kshare up` as the README starts it, from when clients can connect."""
    ready_file = folder / "ready"
    command = f"exec {line} --ready-file {ready_file}"
    with subprocess.Popen(command, shell=True, cwd=folder, env=environment) as up:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not ready_file.exists():
                assert up.poll() is None and time.monotonic() < deadline, "kshare up is not ready"
                time.sleep(0.05)
            yield
        finally:
            up.terminate()
            assert up.wait(LIMIT_S) == 0


def test_every_line_of_the_quickstart(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "KSHARE_BOOTSTRAP": address}
    setup, up, *commands = command_lines(use_it())
    assert setup == "make setup", "CI has run it"
    lines = [line.replace(".venv/bin/kshare", str(BIN / "kshare")) for line in commands]
    printed: dict[str, str] = {}
    with running(
        up.replace(".venv/bin/kshare", str(BIN / "kshare")).replace("127.0.0.1:9092", address), tmp_path, environment
    ):
        for line, command in zip(lines, commands, strict=True):
            printed[command.removeprefix(".venv/bin/kshare ")] = run(line, tmp_path, environment)
        first = python_worker(use_it(), address, tmp_path, environment)
    peeked = printed["peek orders"]
    assert "first order" in peeked and "second order" in peeked
    consumed = printed["consume orders --group billing --from-beginning --max 2"]
    assert "first order" in consumed and "second order" in consumed
    assert re.search(r"state +Empty", printed["groups describe billing"])
    letter = printed["peek dlq.billing"].splitlines()[1]
    assert letter.endswith((" order", "\tfirst order", "\tsecond order"))
    assert first in ("first order", "second order"), "the reset made them available again, and one was rejected"


def test_the_lines_for_a_cluster_that_there_is(tmp_path: Path) -> None:
    export, attach = command_lines(on_your_cluster())
    assert export == "export CLUSTER=broker:9092"
    assert attach.startswith(".venv/bin/kshare attach $CLUSTER --listen 127.0.0.1:19092")
    address = f"127.0.0.1:{free_port()}"
    attach = attach.replace(".venv/bin/kshare", str(BIN / "kshare")).replace("127.0.0.1:19092", address)
    code = on_your_cluster().split(PYTHON_FENCE)[1].split("```")[0].replace("127.0.0.1:19092", address)
    script = tmp_path / "worker.py"
    script.write_text(
        "from confluent_kafka import ShareConsumer\n"
        + code
        + "consumer.subscribe(['orders'])\n"
        + "while not (found := consumer.poll(1.0)):\n    pass\n"
        + "print(found[0].value().decode())\nconsumer.close()\n"
    )
    with ExistingCluster(tmp_path / "cluster") as cluster:
        create_topic(cluster.bootstrap, "orders", 1)
        with running(attach, tmp_path, {**os.environ, "CLUSTER": cluster.bootstrap}):
            read_from_earliest(address, "billing")
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            producer.produce("orders", b"first order")
            assert producer.flush(LIMIT_S) == 0
            assert run(f"{sys.executable} {script}", tmp_path, dict(os.environ)).strip() == "first order"


def python_worker(section: str, address: str, folder: Path, environment: dict[str, str]) -> str:
    """Runs the README's worker as it is, with a `handle` that prints the first record and ends; what it printed."""
    code = section[section.index(PYTHON_FENCE) + len(PYTHON_FENCE) :].split("```")[0]
    assert "127.0.0.1:9092" in code
    handle = """
        def handle(message):
            print(message.value().decode())
            raise SystemExit

    """
    script = folder / "worker.py"
    script.write_text(textwrap.dedent(handle) + code.replace("127.0.0.1:9092", address))
    return run(f"{sys.executable} {script}", folder, environment).strip()
