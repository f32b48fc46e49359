"""Names of topics that share groups need: those that members subscribe to, of dead letters, and of the roles."""

from __future__ import annotations

from collections.abc import Iterable

from kshare_coordinator.machine.catalog.config_changes import DEAD_LETTER_TOPIC
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.topic_names import OF_ROLES, check_topic_name
from kshare_core.errors import KafkaError

NAMES_LIMIT = 10_000
"""Names that are asked for at once; what exceeds them is asked for when others were found."""


def missing_names(state: CoordinatorState, prefix: str, *, has_history: bool) -> list[str]:
    """Names that the groups of this coordinator need and the catalog does not have, at most NAMES_LIMIT.

    `has_history`: leaders write the delivery history. Otherwise its topic is looked up only when a request names it,
    since kshare's user need not be allowed to see it.
    """
    names: dict[str, None] = {}
    for group in state.share_groups.values():
        for member in group.members.values():
            names.update(dict.fromkeys(member.subscribed_topic_names))
    for texts in state.group_configs.values():
        if dead_letter_topic := texts.get(DEAD_LETTER_TOPIC, "").strip():
            names[dead_letter_topic] = None
    of_roles = OF_ROLES if has_history else ()
    return unknown_of(state, [*of_roles, *names], prefix)[:NAMES_LIMIT]


def unknown_of(state: CoordinatorState, names: Iterable[str], prefix: str) -> list[str]:
    """The names that are not in the catalog and may be: legal ones, without those of kshare's own topics."""
    unknown = (name for name in names if state.topic_named(name) is None)
    return [name for name in unknown if not name.startswith(prefix) and _is_legal(name)]


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name, internal=name in OF_ROLES)
    except KafkaError:
        return False
    return True
