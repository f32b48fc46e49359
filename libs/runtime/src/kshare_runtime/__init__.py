"""The runtime of every role: the loop that runs a state machine, and the ports to clock and disk.

Reading order: `machine` (decide → append → replay → respond), then `ports` (the interfaces to the outside), then
`rocks_store` and `memory_store` (the two KeyValueStores; one contract test covers both).
"""
