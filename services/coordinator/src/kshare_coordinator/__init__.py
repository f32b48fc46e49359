"""The coordinator: share groups, and the catalog of topics, configs, nodes and placement.

Read first: `machine/` (the rules, pure), then `core` (store and runner), `deadlines` (leases and sessions),
`group_state` (calls to share coordinators) and `node` (the whole).
"""
