"""The loop that every machine runs in, and the ports to clock and disk.

Read first: `machine` (decide → append → replay → respond), then `ports` (what the outside looks like to a role), then
`rocks_store` and `memory_store` (the two KeyValueStores; one contract test covers both).
"""
