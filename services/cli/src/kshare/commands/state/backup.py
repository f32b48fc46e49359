"""`kshare state backup`: copies a share coordinator's store while it is served, and verifies the copy."""

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
    """The current UTC time, so that backups sort by age."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def back_up_state(address: Address, name: str, show: Callable[[str], None]) -> None:
    """Makes the backup, and verifies it if its directory is on this machine; CommandFailed."""
    directory = back_up(address, name)
    show(f"backup {directory}")
    if not directory.exists():
        show(f"not verified: the backup is on the machine of {address}; run kshare state verify there")
        return
    with readable_store(StorePlace(directory, Path()), None) as store:
        problems = report(verify(store), show)
    if problems:
        raise CommandFailed(f"the backup has {problems} problems, copied from the store; repair the store")
