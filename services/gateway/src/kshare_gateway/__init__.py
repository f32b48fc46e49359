"""The Kafka-protocol gateway: it serves clients and calls leaders and the coordinator by gRPC.

Read first: `node` (the whole), `connections.connection` (frames, order, limits), `dispatch` and `handlers` (one module
per API, by feature). What handlers of a feature share lies in the folder of the feature: `records` (Produce and Fetch),
`share` (sessions, and ShareFetch across leaders), `groups`, `transactions`, `catalog` (topics and brokers for clients),
`state` (keys 83 to 87) and `security`.
"""
