"""The data pipeline: share groups and Spark, through PySpark.

| part | holds |
|---|---|
| `data_source` | the Spark format `kshare`: registers the share source and the sink |
| `share_source/` | read and readStream through a share group: acquired ranges are the offsets; locks are renewed |
| `kafka/` | ranges of plain offsets with confluent-kafka, without Spark |
| `log_source/` | the format `kshare-log`: a topic by plain offsets, for the history and for redrive |
| `sink/` | write and writeStream into topics |
| `session` | a SparkSession of this machine, with these formats |
| `history` | the delivery history's records as Spark columns (the records themselves: `kshare_core.delivery_history`) |
| `tables/` | Structured Streaming from the history topic into partitioned Parquet tables |
| `marts/` | what people ask of the tables: latencies, redelivery, poison records, fairness, lag, dead letters |
| `report/` | the marts as one HTML page |
| `audit/` | proves the correctness rules over a stretch of history, or names the offsets that break them |
| `redrive/` | dead letters and archived ranges back to their topic |
"""
