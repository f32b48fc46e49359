"""A planted bug: what it breaks, and which rule has to find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.simulation.cluster import EMBEDDED
from support.simulation.mutations.focus import ALL_SEEDS, Focus
from support.simulation.mutations.mutation import Mutation


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    """A bug, and how it has to come to light."""

    name: str
    """What the product does wrong, as a sentence."""
    mutation: Callable[[], Mutation]
    """A new one for each run."""
    rules: tuple[str, ...]
    """The rules of which one must be found broken: others do not say what is wrong."""
    seed: int | None
    """The first seed that finds it, which changes with the code; None: none of the first ones does."""
    engine: str = EMBEDDED
    focus: Focus = ALL_SEEDS
    """What all of its seeds have; without a text they are the swarm's own."""
