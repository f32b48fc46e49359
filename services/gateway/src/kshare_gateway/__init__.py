"""The Kafka-protocol gateway: clients on one side, leaders and the coordinator by gRPC on the other.

Read first: `node` (the whole), `connection` (frames, order, limits), `dispatch` and `handlers` (one module an API).
ShareFetch: `sessions` (Kafka's rules, pure), `share_fetching` (across leaders), `batch_cache` and `read_ahead`.
"""
