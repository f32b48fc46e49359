"""Ranges of versions of Kafka's APIs, and the features that ApiVersions announces.

Which versions of an API a gateway serves is said beside the handler (`kshare_gateway.served_apis`).
"""

from __future__ import annotations

from typing import NamedTuple


class VersionRange(NamedTuple):
    """A range of versions; both ends are included."""

    minimum: int
    maximum: int


class Feature(NamedTuple):
    """A feature of ApiVersions (KIP-584): its supported levels and its finalized level."""

    name: str
    minimum: int
    maximum: int
    finalized: int


FEATURES = (
    Feature("group.version", 0, 1, 1),
    Feature("share.version", 0, 2, 2),
    Feature("transaction.version", 0, 2, 2),
)
"""group.version 1: consumer groups of KIP-848. share.version 1: share groups (KIP-932); 2: with dead letters
(KIP-1191). transaction.version 2: each transaction ends with a raised epoch, and leaders add partitions to
transactions themselves (KIP-890)."""
FINALIZED_FEATURES_EPOCH = 1
"""The finalized levels are fixed by the release, so their epoch is too."""
