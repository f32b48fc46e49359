"""The library for users' Spark jobs that read share groups. It needs no package of a service, only a cluster.

| part | holds |
|---|---|
| `data_source` | the Spark format `kshare`; `register(spark)` makes it and `kshare-log` known to a session |
| `share_source/` | read and readStream through a share group: acquired ranges are the offsets; locks are renewed |
| `log_source/` | the format `kshare-log`: a topic by plain offsets |
| `sink/` | write and writeStream into topics |
| `record_columns` | the columns of a record, which are those of Spark's Kafka source |
| `session` | a SparkSession of this machine |
"""
