"""The steps of `kshare demo`.

Start a cluster on a temporary directory. Create the topic and the group's configs. Start the workers and the producer,
each in a process. Collect the account until every order is settled, and for SETTLE_S longer, to notice a second
delivery of a settled order. At the end, even after a failure, stop all processes and remove the directory.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from rich.console import Console

from kshare.commands.topics import admin_client, create_topic, kafka_failure
from kshare.demo.account import Account
from kshare.demo.display import Display, account_table, worker_table
from kshare.demo.processes import Processes
from kshare.demo.worker import CRASHING, REJECTING, RELEASING, STEADY
from kshare.failure import INTERRUPTED, CommandFailed

PRODUCE_S = 8.0
START_S = 40.0
ORDERS_S = 60.0
SETTLE_S = 2.0
CLUSTER = "kshare up"
TOPIC, GROUP, PARTITIONS = "orders", "order-workers", 3
WORKERS = {"ann": STEADY, "bob (releases)": RELEASING, "cat (rejects)": REJECTING, "dan (crashes)": CRASHING}

BROKER_CONFIGS = """\
# Shorter than Kafka allows by default, so that a demonstration is short.
group.share.min.record.lock.duration.ms=1000
group.share.min.heartbeat.interval.ms=500
group.share.heartbeat.interval.ms=500
group.share.min.session.timeout.ms=6000
group.share.session.timeout.ms=6000
"""
GROUP_CONFIGS = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "5000"}


def run_demo(console: Console, *, orders: int) -> bool:
    """Runs the demo; returns whether the account is correct. CommandFailed if the demo itself could not run."""
    with tempfile.TemporaryDirectory(prefix="kshare-demo-", ignore_cleanup_errors=True) as folder:
        try:
            account = asyncio.run(_run(console, Path(folder), orders))
        except (KeyboardInterrupt, asyncio.CancelledError):
            text = "interrupted; all processes were stopped and all files removed"
            raise CommandFailed(text, INTERRUPTED) from None
    console.print(worker_table(account))
    console.print(account_table(account))
    problems = account.problems()
    for problem in problems:
        console.print(f"[red]{problem}[/red]", highlight=False)
    if not problems:
        console.print("[green]Every order was settled exactly once.[/green]")
    return not problems


async def _run(console: Console, folder: Path, orders: int) -> Account:
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    processes = Processes(folder)
    try:
        with Display(console) as display:
            return await _demonstrate(processes, display, folder, orders)
    finally:
        await asyncio.shield(processes.stop_all(last=CLUSTER))


async def _demonstrate(processes: Processes, display: Display, folder: Path, orders: int) -> Account:
    display.print("starting gateway, coordinator, share coordinator and leader")
    bootstrap = await _start_cluster(processes, folder)
    display.print(f"kshare listens on {bootstrap}; creating topic {TOPIC} with {PARTITIONS} partitions")
    await asyncio.to_thread(_prepare, bootstrap)
    account = Account(expected=orders)
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    for name in WORKERS:
        account.worker(name)
    for name, behaviour in WORKERS.items():
        await processes.start(
            name,
            ["kshare.demo.worker", bootstrap, TOPIC, GROUP, behaviour],
            partial(_note, account, display, name),
        )
    await processes.start(
        "producer",
        ["kshare.demo.producer", bootstrap, TOPIC, str(orders), str(PRODUCE_S)],
        partial(_note, account, display, "producer"),
    )
    complete_at: float | None = None
    while (now := loop.time()) - started_at < ORDERS_S:
        display.update(account, now - started_at)
        if account.is_complete and complete_at is None:
            complete_at = now
        if complete_at is not None and now - complete_at >= SETTLE_S:
            break
        processes.check(may_die=frozenset({"dan (crashes)", "producer"}))
        await asyncio.sleep(0.1)
    display.update(account, loop.time() - started_at)
    await processes.stop_all_but(CLUSTER)
    account.mark_finished()
    return account


async def _start_cluster(processes: Processes, folder: Path) -> str:
    """Starts `kshare up`; returns its address."""
    config, ready = folder / "server.properties", folder / "ready"
    config.write_text(BROKER_CONFIGS)
    arguments = ["kshare", "up", "--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0"]
    await processes.start(CLUSTER, [*arguments, "--ready-file", str(ready), "--config", str(config)])
    deadline = asyncio.get_running_loop().time() + START_S
    while not ready.exists():
        processes.check()
        if asyncio.get_running_loop().time() > deadline:
            raise CommandFailed(f"the cluster was not ready within {START_S:g} s:\n{processes.output_of(CLUSTER)}")
        await asyncio.sleep(0.05)
    return ready.read_text().strip()


def _prepare(bootstrap: str) -> None:
    """Creates the topic, and sets the group's configs before its first member joins."""
    create_topic(bootstrap, TOPIC, PARTITIONS, [])
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in GROUP_CONFIGS.items()
    ]
    admin = admin_client(bootstrap)
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    (future,) = admin.incremental_alter_configs([resource]).values()
    try:
        future.result(20)
    except KafkaException as error:
        raise kafka_failure(f"setting the configs of group {GROUP}", error) from None


def _note(account: Account, display: Display, name: str, found: dict[str, Any]) -> None:
    """Adds a report to the account."""
    match found["event"]:
        case "working":
            account.worker(name).state = "working"
        case "produced":
            account.add_produced(found["orders"])
        case "answered":
            for order, answer, delivery_count in found["confirmed"]:
                account.add_confirmed(name, order, answer, delivery_count)
            account.add_refused(name, found["refused"])
        case "crashing":
            account.add_crash(name, found["holding"])
            display.print(f"{name} died while it held {len(found['holding'])} orders")
        case "failed":
            display.print(f"{name}: {found['text']}")
