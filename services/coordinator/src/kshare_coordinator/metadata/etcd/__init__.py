"""etcd as the coordinator uses it: `port` is the interface, `grpc_etcd` implements it.

Tests use the model in `tests/support/metadata/memory_etcd.py`.
"""
