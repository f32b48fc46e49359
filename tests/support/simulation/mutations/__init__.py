"""Bugs that are planted on purpose, to see that the simulation finds them, by the feature that they break.

`mutation` says how one is planted, `catalogue` lists all of them, and `__main__` runs them over many seeds and prints
the table of tests/simulation/PLANTED_BUGS.md. A planted bug that no seed finds shows a hole in the rules or in the
workload.
"""

from __future__ import annotations

from support.simulation.mutations.mutation import Mutation, Patch

__all__ = ["Mutation", "Patch"]
