"""Where the states of share-partitions are kept: RocksDB of this node, or logs in an existing cluster (kshare.engine).

| module | holds |
|---|---|
| `port` | the protocols: `StateLog`, and `StateEngine`, all that the node needs of an engine |
| `embedded` | the engine over this node's RocksDB |
| `upstream` | the engine over the topic `<kshare.upstream.topic.prefix>state`, a fenced log for each state partition |
| `state_partition` | one of those logs: its claims, its machine, and what follows a failure |
| `pruning` | when a log is shortened, and up to where |
| `rows` | the records of a log that are not superseded, as bytes |
| `restoration` | whether a log still has what was confirmed |
"""
