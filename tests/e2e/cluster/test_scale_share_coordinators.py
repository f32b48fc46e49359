"""From one share coordinator to three and back to one, under the load of real share consumers.

Two more processes join, take their part of the state partitions, are drained and stopped. Nothing that was confirmed is
lost or delivered again, no acknowledgement waits or fails for longer than two seconds, and the moves are in /metrics.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.partitions import describe_state_partitions
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.clients.administration import create_topic, read_from_earliest
from support.clients.state_of_group import wait_until_drained
from support.clients.workload import Account, PolledBatch, WorkerPool, WorkerTask, produce_numbered
from support.clusters.attached_roles import attached_to
from support.clusters.kshare_cluster import KshareCluster
from support.environment.machine_stalls import MachineStalls

PARTITIONS = 60
"""So many that each share coordinator gets some of the states."""
STATE_PARTITIONS = 50
WORKERS = 3
STEP = 600
STEADY_S = 3.0
FAILED_FOR_AT_MOST_S = 2.0
READY_WITHIN_S = 30.0


class ShareCoordinatorProcess:
    """One more share coordinator; SIGTERM on exit."""

    def __init__(self, folder: Path, node_id: int, coordinator: str, config: Path) -> None:
        folder.mkdir(parents=True)
        self.node_id = node_id
        self._ready_file = folder / "ready"
        self._log = folder / "log"
        command = [sys.executable, "-m", "kshare_share_coordinator", "--node-id", str(node_id)]
        command += ["--data-dir", str(folder / "data"), "--coordinator-address", coordinator]
        command += ["--ready-file", str(self._ready_file), "--metrics-listen", "127.0.0.1:0", "--config", str(config)]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> ShareCoordinatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait_ready(self) -> None:
        wait_for(self._ready_file.exists, READY_WITHIN_S, lambda: self._log.read_text(errors="replace")[-2000:])

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels."""
        content = dict(line.split("=", 1) for line in self._ready_file.read_text().splitlines())
        with urllib.request.urlopen(f"http://{content['metrics_address']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = re.compile(r"kshare_share_coordinator_(\S+) (\S+)$")
        return {match[1]: float(match[2]) for match in map(found.match, lines) if match}

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(30) == 0, self._log.read_text(errors="replace")[-2000:]


class TimedAccount(Account):
    """Also knows how long a poll and the acknowledgement of what it gave took together, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self.longest: tuple[float, float] = (0.0, 0.0)
        """When it began and ended."""
        self.failed: list[str] = []

    def add(self, batch: PolledBatch) -> None:
        super().add(batch)
        took_s = batch.confirmed_at - batch.polled_at
        if took_s > self.longest_s:
            self.longest_s, self.longest = took_s, (batch.polled_at, batch.confirmed_at)
        missing = {*batch.partitions} - batch.confirmed_partitions
        if missing:
            self.failed.append(f"worker {batch.worker} at {batch.confirmed_at:.1f}: partitions {sorted(missing)}")


class Producing(threading.Thread):
    """Produces steadily until it is told to stop; `count` records are confirmed."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self._stop_asked = threading.Event()
        self.count = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(0.2):
                produce_numbered(self._address, "load", range(self.count, self.count + STEP), PARTITIONS)
                self.count += STEP
        except BaseException as failure:
            self.failure = failure

    def finish(self) -> int:
        self._stop_asked.set()
        self.join(60)
        assert self.failure is None, self.failure
        assert not self.is_alive()
        return self.count


def wait_for(condition: Callable[[], bool], within_s: float, describe: Callable[[], object]) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.1)


def kshare(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "kshare"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stderr}"
    return done.stdout


class Moves:
    """Who owns how many state partitions, as the coordinator says."""

    def __init__(self, data_dir: Path) -> None:
        self.address = coordinator_address(None, data_dir)

    def describe(self) -> pb.DescribeStatePartitionsResponse:
        return describe_state_partitions(self.address)

    def loads(self) -> dict[int, int]:
        """By node; while something moves, all of that at node -1."""
        owners = self.describe().state_partitions
        return dict(Counter(-1 if owner.is_moving else owner.node_id for owner in owners))

    def wait_for(self, wanted: list[int]) -> None:
        """Until nothing moves and the nodes own so many, the fewest first."""
        wait_for(lambda: sorted(self.loads().values()) == wanted and -1 not in self.loads(), 60, self.describe)


def config_of(cluster: KshareCluster, folder: Path) -> Path:
    """The property file of the share coordinators that join."""
    config = folder / "share-coordinator.properties"
    settings = {} if cluster.upstream is None else attached_to(cluster.upstream)
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return config


@pytest.mark.quiet
@pytest.mark.timeout(280)
def test_from_one_to_three_and_back_to_one(tmp_path: Path) -> None:
    with KshareCluster(tmp_path / "cluster") as cluster:
        moves = Moves(tmp_path / "cluster" / "data")
        coordinator = str(moves.address)
        config = config_of(cluster, tmp_path)
        copies = cluster.upstream is None
        create_topic(cluster.bootstrap, "load", PARTITIONS)
        read_from_earliest(cluster.bootstrap, "workers")
        moves.wait_for([STATE_PARTITIONS])
        producing = Producing(cluster.bootstrap)
        producing.start()
        tasks = [
            WorkerTask(bootstrap=cluster.bootstrap, topic="load", group="workers", index=index, release_every=7)
            for index in range(WORKERS)
        ]
        with MachineStalls() as stalls, WorkerPool(tasks) as pool:
            pool.account = account = TimedAccount()
            pool.run_until(lambda so_far: len(so_far.accepted) >= 2 * STEP, timeout_s=60)
            account.longest_s = 0.0  # before: members join and states are made
            with (
                ShareCoordinatorProcess(tmp_path / "two", 2, coordinator, config) as two,
                ShareCoordinatorProcess(tmp_path / "three", 3, coordinator, config) as three,
            ):
                two.wait_ready()
                three.wait_ready()
                moves.wait_for([16, 17, 17])
                pool.run_for(STEADY_S)
                for node in (two, three):
                    check_moves_in(node, copies=copies)
                table = kshare("state", "partitions", "--coordinator", coordinator)
                assert table.count("live") == 3
                for node in (two, three):
                    output = kshare("state", "drain", str(node.node_id), "--coordinator", coordinator)
                    assert "is empty and can be stopped" in output
                    check_moves_out(node, copies=copies)
                    node.stop()
                assert moves.loads() == {1: STATE_PARTITIONS}
                pool.run_for(STEADY_S)
            total = producing.finish()
            pool.run_until(lambda so_far: len(so_far.accepted) >= total, timeout_s=60)
            pool.run_until_drained(cluster.bootstrap, "workers", "load", timeout_s=60)
            ends = [len(range(partition, total, PARTITIONS)) for partition in range(PARTITIONS)]
            wait_until_drained(cluster, "workers", "load", ends, timeout_s=60)
        assert account.finish(range(total)) == []
        assert {*account.accepted_at} == set(range(total))
        assert account.failed == []
        credit_s = stalls.credit_s(*account.longest, FAILED_FOR_AT_MOST_S)
        assert account.longest_s <= FAILED_FOR_AT_MOST_S + credit_s, f"{credit_s:.1f} s of it were the machine's"


def check_moves_in(node: ShareCoordinatorProcess, *, copies: bool) -> None:
    """`copies`: states are copied from node to node; in an existing cluster only their owner changes."""
    metrics = node.metrics()
    assert metrics["state_partitions"] in (16, 17)
    if not copies:
        return
    completed = metrics['state_partition_moves_total{direction="in",step="completed"}']
    assert completed >= metrics["state_partitions"]
    assert metrics['state_partition_moves_total{direction="in",step="started"}'] >= completed
    assert metrics['state_partition_move_seconds_count{direction="in"}'] == completed
    assert metrics['state_partition_move_seconds_sum{direction="in"}'] < FAILED_FOR_AT_MOST_S * completed
    assert metrics['state_partition_move_bytes_total{direction="in"}'] > 0


def check_moves_out(node: ShareCoordinatorProcess, *, copies: bool) -> None:
    def is_done() -> bool:
        return node.metrics()["state_partitions"] == 0

    wait_for(is_done, 10, node.metrics)
    if not copies:
        return
    metrics = node.metrics()
    completed = metrics['state_partition_moves_total{direction="out",step="completed"}']
    assert completed >= 16
    assert metrics['state_partition_move_bytes_total{direction="out"}'] > 0
