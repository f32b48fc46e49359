"""The coordinator's pure machine: groups and the catalog, event-sourced by CoordinatorRecord.

Read first: `state` (what there is and how a record changes it), `commands` (what can be asked), then `machine` (which
command is decided where). `catalog`, `nodes`, `placement` and `configs` decide for the catalog. `group_namespace` knows
of which type a group id is, `group_administration` lists and deletes groups of every type. `share_groups`,
`share_group_draft`, `share_partitions`, `assignor` and `share_group_administration` are for share groups;
`classic_groups`, `classic_group_rebalance` and `classic_group_draft` for groups of the classic protocol (values in
`classic_group`); `consumer_groups…` (the values first) and `consumer_assignors` for consumer groups of KIP-848;
`group_protocols` says which of the two answers a request of the classic protocol;
`offsets`, `offsets_groups` (who may commit), `offsets_transactional` and `offsets_table` for committed offsets,
`share_group_offsets` for lags; `transactions` (what is in one) and `transactions_ending` (who may use an id, and how
transactions end) for transactions, whose values are in `transactions_metadata`; `catalog_view`, `group_queries`,
`classic_group_queries`, `offsets_view` and `transactions_queries` only look.
"""
