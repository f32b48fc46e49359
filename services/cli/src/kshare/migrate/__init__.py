"""`kshare migrate`: from a kshare that keeps records itself to an existing cluster with a kshare in front of it.

Each run looks at both places, does what is missing at the new one, and says what the operators of producers and
consumers have to do next. No run needs to know of earlier ones, and nothing is changed at the old place.

| module | holds |
|---|---|
| `topics` | which topics are created, with which configs |
| `groups` | where each share group stands, and the configs that it gets |
| `command` | the runs, and what is printed |
"""
