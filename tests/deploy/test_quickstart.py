"""docs/quickstart.md: its lines run in an empty environment with the packages that `make wheels` builds."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.environment.free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/quickstart.md"
WRITTEN_ADDRESS = "127.0.0.1:9092"
LIMIT_S = 240


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
        printed = [run(line, tmp_path, environment) for line in found["Produce and consume"]]
        assert deliveries(printed[3]) and set(deliveries(printed[3]).values()) == {1}
        redelivered = deliveries(printed[4])
        assert set(redelivered) == {"first order", "second order", "third order"}
        assert {redelivered[value] for value in deliveries(printed[3])} == {2}
        worked = [run(line, tmp_path, environment) for line in found["A worker in Python"]]
    assert sorted(worked[3].splitlines()) == ["accepted fourth order", "rejected poison"]
    assert "poison" in worked[4]


def deliveries(output: str) -> dict[str, int]:
    """Value -> delivery count, of what `kshare consume` printed."""
    rows = [line.split("\t") for line in output.splitlines()[1:]]
    return {value: int(count) for _, _, count, _, value in rows}
