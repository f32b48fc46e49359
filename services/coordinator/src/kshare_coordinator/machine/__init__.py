"""The coordinator's pure machine: groups and the catalog, event-sourced by CoordinatorRecord.

Read first: `state` (the state and how a record changes it), `commands` (the inputs), then `machine` and `deciding` (a
function says above itself which command it decides). `metadata_partitions` says which coordinator decides a command.

- `catalog`: topics, configs, nodes, and where partitions and state partitions are placed.
- `groups`: `namespace` maps a group id to its type; `administration` lists and deletes groups of all types;
  `classic_protocol` routes requests of the classic protocol to classic or consumer groups, `member_expiry` the expiry
  of members to consumer or share groups.
- `groups.share`: share groups (KIP-932). Read `group` and `heartbeats` first.
- `groups.classic`: groups of the classic protocol. Read `group` and `requests` first.
- `groups.consumer`: consumer groups (KIP-848). Read `values` and `heartbeats` first.
- `offsets`: committed offsets; `permissions` says who may commit to which type of group.
- `transactions`: `contents` (partitions and offsets in a transaction) and `ending` (use of transactional ids, and how
  transactions end).

In each folder `queries` and `view` only read. Imports between the folders go one way: transactions, catalog, offsets,
groups (contracts in pyproject.toml).
"""
