"""The coordinator's pure machine: groups and the catalog, event-sourced by CoordinatorRecord.

Read first: `state` (the state and how a record changes it), `commands` (the inputs), then `machine` (which function
decides which command).

- Catalog: `topics`, `partition_growth`, `partition_moves`, `nodes`, `placement` and `config_changes`.
- All groups: `group_namespace` maps a group id to its type; `group_administration` lists and deletes groups.
- Share groups: `share_groups`, `share_group_draft`, `share_partitions`, `assignor`, `share_group_administration`, and
  `share_group_offsets` for lags.
- Classic groups: `classic_groups`, `classic_group_rebalance`, `classic_group_draft`; values in `classic_group`.
- Consumer groups (KIP-848): `consumer_groups…` (read `consumer_groups_values` first) and `consumer_assignors`.
  `group_protocols` routes requests of the classic protocol to classic or consumer groups.
- Committed offsets: `offsets`, `offsets_groups` (permission to commit), `offsets_transactional`, `offsets_table`.
- Transactions: `transactions` (contents of a transaction), `transactions_ending` (use of transactional ids, and how
  transactions end); values in `transactions_metadata`.
- Read-only: `catalog_view`, `group_queries`, `classic_group_queries`, `offsets_view` and `transactions_queries`.
"""
