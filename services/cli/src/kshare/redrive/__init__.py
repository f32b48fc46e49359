"""The engines of `kshare redrive`; what they share is in `kshare_kafka_client.redrive`.

| module | holds |
|---|---|
| `spark` | redrive with Spark: many partitions at once, SQL expressions; only this module imports pyspark |
| `engine` | chooses the engine |
"""
