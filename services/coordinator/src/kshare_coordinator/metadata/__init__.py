"""Stores of the coordinator's rows and of their ownership: one port, three adapters.

Start with `port`. `rocksdb_store` keeps all rows of a single coordinator in its own RocksDB. `etcd_store` shares them
among several coordinators, with leases, elections and fencing tokens of etcd. `upstream` keeps them in a topic of an
existing cluster: one active coordinator owns all partitions, the others are standbys.
"""
