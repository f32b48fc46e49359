"""The Kafka-protocol gateway: it serves clients and calls leaders and the coordinator by gRPC.

Read first: `node` (the whole), `connection` (frames, order, limits), `dispatch` and `handlers` (one module per API).
ShareFetch: `sessions` (Kafka's rules, pure), `share_fetching` (across leaders), `batch_cache` and `read_ahead`.
"""
