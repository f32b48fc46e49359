"""The limit of group ids that a request would store (kshare.id.max.bytes), where the gateway can check it itself."""

from __future__ import annotations

from kshare_core.configs import Configs

SHOWN_CHARACTERS = 50


def group_id_problem(configs: Configs, group_id: str) -> str | None:
    """The problem with the length of a group id, or None."""
    limit = configs.integer("kshare.id.max.bytes")
    if 4 * len(group_id) <= limit or (size := len(group_id.encode())) <= limit:
        return None
    return f"The group id {group_id[:SHOWN_CHARACTERS]}... has {size} bytes; kshare.id.max.bytes allows {limit}"
