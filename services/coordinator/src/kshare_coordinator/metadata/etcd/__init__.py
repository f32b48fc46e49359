"""etcd as the coordinator uses it: `port` says what, `grpc_etcd` does it; tests model it in `support.memory_etcd`."""
