"""The share coordinator's pure machine.

Read first: `share_coordinator` (the rules of the five RPCs), `share_group_offset` (state and records), `state_batches`
(how runs of offsets combine), `operations` (commands, results and what is refused as malformed).
"""
