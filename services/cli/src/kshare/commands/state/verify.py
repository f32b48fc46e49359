"""`kshare state verify`: reads every row of a store, its own checksums and RocksDB's, and says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kshare.commands.state.state_store_place import StorePlace, readable_store
from kshare.failure import CommandFailed
from kshare_share_coordinator.maintenance.verification import Verified, verify


def verify_state(place: StorePlace, told_address: str | None, show: Callable[[str], None]) -> None:
    """Shows what is there; CommandFailed where something is damaged, with what to do."""
    with readable_store(place, told_address) as store:
        problems = report(verify(store), show)
    if problems:
        raise CommandFailed(
            f"{problems} problems. A share-partition can be deleted (its group's state begins anew); a whole state "
            "partition is restored with kshare state import --replace N from an export of a backup, while its share "
            "coordinator is stopped"
        )


def report(found: Sequence[Verified], show: Callable[[str], None]) -> int:
    """Shows what was found; how many problems there are."""
    problems = sum(verified.problem_count for verified in found)
    share_partitions = sum(verified.share_partitions for verified in found)
    updates = sum(verified.updates for verified in found)
    show(f"{share_partitions} share-partitions with {updates} updates in {len(found) - 1} state partitions")
    for verified in found:
        for problem in verified.problems:
            show(f"{verified.name}: {problem}")
        if verified.problem_count > len(verified.problems):
            show(f"{verified.name}: and {verified.problem_count - len(verified.problems)} more")
    show("all rows are as they were written" if not problems else f"{problems} problems")
    return problems
