"""The history service: Parquet tables, marts and a report of the delivery history, kept up to date by Spark.

| part | holds |
|---|---|
| `history` | the delivery history's records as Spark columns (the records themselves: `kshare_core.delivery_history`) |
| `tables/` | Structured Streaming from the history topic into partitioned Parquet tables |
| `marts/` | latencies, redelivery, poison records, fairness, lag and dead letters, computed from the tables |
| `report/` | the marts as one HTML page |
| `worker`, `node` | the loop that reads, computes and cleans up, and the process around it |

The formats of Spark that it reads with are in `kshare_spark`; the audit and redrive are tools of the command
(`kshare.audit`, `kshare.redrive`).
"""
