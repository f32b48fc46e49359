"""The coordinator: share groups, committed offsets, transactions, and the catalog of topics, configs and nodes.

Read first: `machine/` (the rules, pure), then `core` (store and runner), `deadlines` (leases and sessions),
`group_state` (calls to share coordinators), `transaction_markers` (calls to leaders), `offsets_expiry` and `node` (the
whole role).
"""
