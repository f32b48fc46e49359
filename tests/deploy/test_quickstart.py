"""docs/quickstart.md: its lines run in an empty environment with the packages of `make wheels`, and in a container.

A new user has the first acknowledged record within FIRST_ACKNOWLEDGED_S of a built image. From built packages the time
is printed only (pytest -s), as it depends on the network and on the tests that run beside this one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.environment.docker import docker, docker_environment, image
from support.environment.free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/quickstart.md"
WRITTEN_ADDRESS = "127.0.0.1:9092"
LIMIT_S = 240
FIRST_ACKNOWLEDGED_S = 120.0


def sections() -> dict[str, list[str]]:
    """The commands of each section, without the code of the worker."""
    text = re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.DOTALL)
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return {
        heading: [line.strip() for line in part.splitlines() if line.startswith("    ")]
        for heading, part in zip(parts[1::2], parts[2::2], strict=True)
    }


def run(line: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running(line: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """`kshare up` as the page starts it; another port may be given in place of Kafka's."""
    ready_file = folder / "ready"
    with subprocess.Popen(
        f"exec {line} --ready-file {ready_file}", shell=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL
    ) as up:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not ready_file.exists():
                assert up.poll() is None and time.monotonic() < deadline, "kshare up is not ready"
                time.sleep(0.05)
            yield
        finally:
            up.terminate()
            assert up.wait(LIMIT_S) == 0


def test_every_line_from_the_packages_to_a_dead_letter(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    found = sections()
    make, *install = found["Install"]
    assert make == "make wheels"
    run(make, ROOT, dict(os.environ))
    # Nothing of this environment is seen there: neither its packages nor its sources.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"KSHARE_BOOTSTRAP": address}
    began_s = time.monotonic()
    for line in install:
        run(line.replace("build/wheels", str(ROOT / "build/wheels")), tmp_path, environment)
    imported = run(
        "kshare-env/bin/python -c 'import kshare, kshare_wire; print(kshare.__file__)'", tmp_path, environment
    )
    assert Path(imported.strip()).is_relative_to(tmp_path)

    (up,) = found["Run"]
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "worker.py").write_text(code.replace(WRITTEN_ADDRESS, address))
    with running(up.replace(WRITTEN_ADDRESS, address), tmp_path, environment):
        produce_and_consume(found["Produce and consume"], tmp_path, environment)
        print_time("wheels", began_s)
        worked = [run(line, tmp_path, environment) for line in found["A worker in Python"]]
    assert sorted(worked[3].splitlines()) == ["accepted fourth order", "rejected poison"]
    assert "poison" in worked[4]


@pytest.mark.timeout(1_200)  # it may build the image
def test_every_line_from_an_image_to_an_acknowledged_record(tmp_path: Path) -> None:
    found = sections()
    build, started = found["Or in a container"]
    name, environment = image("all-in-one"), docker_environment()
    target = name.partition(":")[0]
    assert build == f"docker build -f deploy/images/Dockerfile --target {target.removeprefix('kshare/')} -t {target} ."
    container = f"kshare-test-{uuid.uuid4().hex[:8]}"
    own = {"--name kshare": f"--name {container}", ":9092:": f":{free_port()}:", "-v kshare:": f"-v {container}:"}
    for written, other in {**own, target: name}.items():
        assert started.count(written) == 1, f"{written} in {started}"
        started = started.replace(written, other)
    told = re.search(
        r"write `docker exec kshare (kshare)` for `(\S+)`, and `docker exec -i kshare (.+?)` for\s+`(.+?)`",
        PAGE.read_text(),
    )
    assert told is not None
    words = {told[4]: f"docker exec -i {container} {told[3]}", told[2]: f"docker exec {container} {told[1]}"}

    def in_container(section: str) -> list[str]:
        lines = found[section]
        for written, other in words.items():
            lines = [line.replace(written, other) for line in lines]
        return lines

    began_s = time.monotonic()
    try:
        with subprocess.Popen(
            started.split(), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as up:
            assert up.stdout is not None
            assert any(line.startswith("kshare listens on") for line in up.stdout), "kshare up ended"
            produce_and_consume(in_container("Produce and consume"), tmp_path, environment)
            assert print_time("an image", began_s) < FIRST_ACKNOWLEDGED_S
            code = PAGE.read_text().split("```python\n")[1].split("```")[0]
            (tmp_path / "worker.py").write_text(code)
            worked = [run(line, tmp_path, environment) for line in in_container("A worker in Python")]
            assert sorted(worked[3].splitlines()) == ["accepted fourth order", "rejected poison"]
            up.send_signal(signal.SIGINT)
            up.stdout.read()
            assert up.wait(LIMIT_S) == 0
    finally:
        subprocess.run(["docker", "rm", "--force", container], env=environment, capture_output=True, check=False)
        docker("volume", "rm", container, environment=environment)


def produce_and_consume(lines: list[str], folder: Path, environment: dict[str, str]) -> None:
    """The lines of this section; the last one acknowledges what the one before released."""
    printed = [run(line, folder, environment) for line in lines]
    assert deliveries(printed[3]) and set(deliveries(printed[3]).values()) == {1}
    redelivered = deliveries(printed[4])
    assert set(redelivered) == {"first order", "second order", "third order"}
    assert {redelivered[value] for value in deliveries(printed[3])} == {2}


def print_time(origin: str, began_s: float) -> float:
    took_s = time.monotonic() - began_s
    print(f"from {origin} to the first acknowledged record: {took_s:.1f} s")
    return took_s


def deliveries(output: str) -> dict[str, int]:
    """Value -> delivery count, of what `kshare consume` printed."""
    rows = [line.split("\t") for line in output.splitlines()[1:]]
    return {value: int(count) for _, _, count, _, value in rows}
