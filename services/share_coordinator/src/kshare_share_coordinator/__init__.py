"""The share coordinator: the durable state of share-partitions.

Read first: `machine/` (the rules of the five RPCs, pure), `records` (Kafka's bytes), `state_store` (what lies where in
RocksDB), `ownership` (which state partitions are ours, and when not to answer), then `node`.
"""
