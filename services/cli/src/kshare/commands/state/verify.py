"""`kshare state verify`: reads all rows of a store, verifies its own and RocksDB's checksums, and lists problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.state.log_comparison import states_beyond_logs
from kshare.commands.state.state_store_place import StorePlace, readable_store
from kshare.failure import CommandFailed
from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.share_group_offset import LogTruncation
from kshare_share_coordinator.maintenance.verification import Verified, verify


def verify_state(
    place: StorePlace,
    given_address: str | None,
    show: Callable[[str], None],
    *,
    bootstrap: str | None = None,
    properties: Properties = NO_PROPERTIES,
) -> None:
    """Prints a summary and all problems; CommandFailed for damage, with the remedy.

    With `bootstrap` the states are also compared with the logs; a disagreement is a failure.
    """
    with readable_store(place, given_address) as store:
        found = verify(store)
    problems = report(found, show)
    states = [state for verified in found for state in verified.states]
    disagreements = [] if bootstrap is None else states_beyond_logs(bootstrap, states, properties)
    for text in disagreements:
        show(text)
    if bootstrap is not None and not disagreements:
        show("no state has offsets beyond the end of its log")
    if disagreements and not problems:
        raise CommandFailed(f"{len(disagreements)} states disagree with their logs, or could not be compared")
    if problems:
        raise CommandFailed(
            f"{problems} problems. Delete a damaged share-partition (its group restarts there), or restore the whole "
            "state partition N with kshare state import --replace N from the export of a backup, while its share "
            "coordinator is stopped"
        )


def truncation_text(key: SharePartitionKey, truncation: LogTruncation) -> str:
    """A sentence about a state that a leader truncated because its log does not have the records."""
    at = datetime.fromtimestamp(truncation.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"the state of share-partition {key} was truncated at offset {truncation.offset} in leader epoch "
        f"{truncation.leader_epoch}, at {at}: it had start offset {truncation.start_offset} and offsets up to "
        f"{truncation.end_offset - 1}, but the log does not have these records"
    )


def report(found: Sequence[Verified], show: Callable[[str], None]) -> int:
    """Prints what was found; returns the number of problems."""
    problems = sum(verified.problem_count for verified in found)
    share_partitions = sum(verified.share_partitions for verified in found)
    updates = sum(verified.updates for verified in found)
    show(f"{share_partitions} share-partitions with {updates} updates in {len(found) - 1} state partitions")
    for verified in found:
        for problem in verified.problems:
            show(f"{verified.name}: {problem}")
        if verified.problem_count > len(verified.problems):
            show(f"{verified.name}: and {verified.problem_count - len(verified.problems)} more")
    for verified in found:
        for state in verified.states:
            if state.truncation is not None:
                show(f"{verified.name}: {truncation_text(state.key, state.truncation)}")
    show("all checksums are correct" if not problems else f"{problems} problems")
    return problems
