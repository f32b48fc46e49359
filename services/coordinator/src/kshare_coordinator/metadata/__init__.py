"""Where the coordinator's rows are kept, and who may write which: one port, two adapters.

Start with `port`. `rocksdb_store` keeps all rows of the only coordinator in its own RocksDB; `etcd_store` shares them
among several, whose leases, elections and fencing tokens are etcd's.
"""
