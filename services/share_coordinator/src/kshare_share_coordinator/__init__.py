"""The share coordinator: the durable state of share-partitions.

Read first: `machine/` (the rules of the five RPCs, pure), `records` (Kafka's bytes), `state_store` (the layout in
RocksDB), `ownership` (which state partitions this node owns, and when it may answer), then `node`.
"""
