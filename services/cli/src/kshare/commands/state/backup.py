"""`kshare state backup`: a copy of a share coordinator's store while it serves, and whether the copy can be read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from kshare.addresses import Address
from kshare.commands.state.state_store_place import StorePlace, back_up, readable_store
from kshare.commands.state.verify import report
from kshare.failure import CommandFailed
from kshare_share_coordinator.maintenance.verification import verify


def default_name() -> str:
    """The time, so that backups are listed in order."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def back_up_state(address: Address, name: str, show: Callable[[str], None]) -> None:
    """Makes the backup and verifies it where it can be seen from here; CommandFailed."""
    directory = back_up(address, name)
    show(f"backup {directory}")
    if not directory.exists():
        show(f"It lies on the machine of {address}; look at it there with kshare state verify")
        return
    with readable_store(StorePlace(directory, Path()), None) as store:
        problems = report(verify(store), show)
    if problems:
        raise CommandFailed(f"the backup has what the store has: {problems} problems. Repair the store")
