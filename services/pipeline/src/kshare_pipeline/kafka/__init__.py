"""Topics by plain offsets, with confluent-kafka and without Spark: what the log source and redrive are built on.

`properties` (the `kafka.*` options), `topics` (partitions and their offsets), `range_reader` (the records of a range,
exactly). Nothing here imports pyspark.
"""
