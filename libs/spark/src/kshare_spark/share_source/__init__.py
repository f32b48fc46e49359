"""The Spark source `kshare`: records of topics, taken through a share group.

How it works: Spark's Python process for the source joins the share group as one member (`member`, driven by the thread
of `keeper`), acquires records, and writes which ones into Spark's offset: runs of offsets, no bytes (`offset`).
Executors read exactly these runs by plain Fetch (`reading`), so a batch that is replayed from the checkpoint reads the
same records, whoever holds them meanwhile. While a batch runs, the driver renews the locks. A batch is accepted when
Spark says that it is done: by asking for what comes after it, by commit(), or through the listener that
`kshare_spark.data_source.register` adds (`listener`, `control`). What was acquired and is not done is released when
the query stops or fails.

| module | holds |
|---|---|
| `options` | what may be given as option, and what is wrong with what was given |
| `runs` | runs of offsets: union, intersection, difference |
| `offset` | the offset in Spark's checkpoint |
| `ledger` | which runs are held, which are done, which may be accepted: the rules, without network |
| `connection`, `cluster` | Kafka's protocol as a blocking client |
| `acknowledging` | narrows a refused acknowledgement down to the runs that are not held; without network |
| `member` | one member of a share group: heartbeats, share sessions, acquire, acknowledge, renew |
| `keeper` | the thread that owns the member |
| `control`, `listener` | the way from the user's process to the source's process |
| `columns` | the schema |
| `reading` | runs of offsets as Arrow batches, in executors |
| `stream_reader`, `batch_reader`, `taking` | readStream; read; `take()`: accepted when a block ends well |

Rules: nothing is accepted that this member does not hold; what is not accepted comes again; what this query has done
already is accepted, not read again, when it comes again.
"""
