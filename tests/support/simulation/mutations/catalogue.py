"""All planted bugs, by feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from support.simulation.mutations import (
    acknowledgements,
    batch_files,
    consumer_groups,
    dead_letters,
    delivery_limits,
    durability,
    etcd_ownership,
    fenced_logs,
    groups,
    leases,
    liveness,
    locks,
    partition_moves,
    producers,
    share_sessions,
    share_state,
    start_offsets,
    transactions,
    unexpected,
)
from support.simulation.mutations.mutation import Mutation
from support.simulation.mutations.planted_bug import PlantedBug

PLANTED: Mapping[str, Sequence[PlantedBug]] = {
    "acquisition locks": locks.PLANTED,
    "acknowledgements": acknowledgements.PLANTED,
    "delivery limits": delivery_limits.PLANTED,
    "share sessions": share_sessions.PLANTED,
    "leases and epochs": leases.PLANTED,
    "moves": partition_moves.PLANTED,
    "transactions": transactions.PLANTED,
    "dead letters": dead_letters.PLANTED,
    "share groups": groups.PLANTED,
    "consumer groups and administration": consumer_groups.PLANTED,
    "share-partition state": share_state.PLANTED,
    "start offsets": start_offsets.PLANTED,
    "durability": durability.PLANTED,
    "batches in files": batch_files.PLANTED,
    "idempotent producers": producers.PLANTED,
    "ownership in etcd": etcd_ownership.PLANTED,
    "fenced logs": fenced_logs.PLANTED,
    "liveness during faults": liveness.PLANTED,
    "errors": unexpected.PLANTED,
}
"""By feature."""

BY_NAME: Mapping[str, PlantedBug] = {bug.name: bug for bugs in PLANTED.values() for bug in bugs}

HARMLESS: Mapping[str, Callable[[], Mutation]] = {"old writes come again": share_state.old_writes_come_again}
"""Faults that the rules have to stand."""
