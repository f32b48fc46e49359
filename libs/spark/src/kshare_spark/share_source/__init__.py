"""The Spark source `kshare`: records of topics, acquired through a share group.

Spark's Python process of the source joins the share group as one member (`member`, run by the thread of `keeper`). It
acquires records and writes their runs of offsets, without record bytes, into Spark's offset (`offset`). Executors read
exactly these runs by plain Fetch (`reading`), so a batch that is replayed from the checkpoint reads the same records,
whichever member has acquired them since. While a batch runs, the driver renews the locks. A batch is accepted when
Spark shows that it is done: Spark requests the next offset, calls commit(), or reports progress to the listener that
`kshare_spark.data_source.register` adds (`listener`, `control`). Acquired records that are not done are released when
the query stops or fails.

| module | holds |
|---|---|
| `options` | the options and their checks |
| `runs` | runs of offsets: union, intersection, difference |
| `offset` | the offset in Spark's checkpoint |
| `ledger` | the rules: which runs are held, done, and may be accepted; without network |
| `connection`, `cluster` | Kafka's protocol as a blocking client |
| `acknowledging` | narrows a refused acknowledgement down to the runs that are not held; without network |
| `member` | one member of a share group: heartbeats, share sessions, acquire, acknowledge, renew |
| `keeper` | the thread that owns the member |
| `control`, `listener` | messages from the user's process to the source's process |
| `columns` | the schema |
| `reading` | runs of offsets as Arrow batches, in executors |
| `stream_reader`, `batch_reader`, `taking` | readStream; read; `take()`: accepted when a block succeeds |

Rules: the member accepts only records whose locks it holds. Records that are not accepted are delivered again. If the
query has already processed them, it accepts them then without reading them again.
"""
