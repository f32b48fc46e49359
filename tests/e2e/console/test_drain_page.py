"""A drain clicked in the console's page, on a cluster with two leaders and two share coordinators: records go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

from support.clients.administration import alter_group, create_topic
from support.clients.delivery import SETTINGS, Reader, produce, wait_for
from support.clusters.restarted_roles import RestartedRoles
from support.environment.browser import browser
from support.environment.free_ports import free_port

WITHIN_MS = 30_000
ROLES = {"share-coordinator-1": "share-coordinator-2", "leader-1": "leader-2"}
"""What is drained, and what takes over."""


@contextmanager
def console(folder: Path, bootstrap: str, coordinator: str) -> Iterator[str]:
    """The address of a console that may change things, in a process of its own."""
    address, ready = f"127.0.0.1:{free_port()}", folder / "console.ready"
    flags = {
        "--bootstrap-servers": bootstrap,
        "--coordinator-address": coordinator,
        "--console-listen": address,
        "--console-admin": "true",
        "--ready-file": str(ready),
    }
    command = [sys.executable, "-m", "kshare_console", *(part for flag in flags.items() for part in flag)]
    with (folder / "console.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(ready.exists, "the console is ready")
        yield address
    finally:
        process.terminate()
        assert process.wait(20) == 0, (folder / "console.log").read_text()[-2000:]


def drain(page: Page, drained: str, other: str) -> None:
    """Asks for it, says yes, and waits until the page shows that all has moved."""
    row, rest = (page.locator(f'[data-node="{name}"]') for name in (drained, other))
    expect(row.locator('td[data-label="Partitions"]')).not_to_have_text("0")
    row.get_by_role("button", name="Drain").click()
    expect(page.locator("#dialog .question")).to_contain_text(f"Drain {drained}?")
    page.locator("#confirm").click()
    expect(page.locator("#notice")).to_contain_text(f"{drained} gives its partitions to others")
    expect(row.locator('td[data-label="State"]')).to_contain_text("draining")
    expect(row.locator('td[data-label="Partitions"]')).to_have_text("0")
    expect(row.get_by_role("button", name="Drain")).to_be_disabled()
    expect(rest.locator('td[data-label="State"]')).to_contain_text("in use")


def test_a_drain_moves_everything_and_records_go_on(tmp_path: Path) -> None:
    with RestartedRoles(tmp_path / "roles", SETTINGS, gateways=1) as roles:
        bootstrap = roles.bootstraps[0]
        create_topic(bootstrap, "orders", 4)
        alter_group(bootstrap, "billing", {"share.auto.offset.reset": "earliest"})
        with (
            console(tmp_path, bootstrap, roles.coordinators) as address,
            Reader(bootstrap, "billing", "orders") as worker,
            browser() as chromium,
        ):
            produce(bootstrap, "orders", ["a", "b"])
            assert len(worker.accept(2)) == 2
            page = chromium.new_page()
            expect.set_options(timeout=WITHIN_MS)
            page.goto(f"http://{address}/#/placement")
            for drained, other in ROLES.items():
                drain(page, drained, other)
                produce(bootstrap, "orders", [f"after {drained}", "and another"])
                assert len(worker.accept(2)) == 2
        assert all(role.is_running for role in roles.roles.values())
