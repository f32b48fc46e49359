"""The audit: proves the correctness rules over a stretch of delivery history, or names the offsets that break them.

| module | holds |
|---|---|
| `share_partition` | the rules, as a pure machine of one share-partition; no Spark below it |
| `events`, `order`, `offset_runs`, `loaded_state`, `findings` | what that machine is made of |
| `direct` | the audit of records in memory, without Spark |
| `sources` | the history as a DataFrame: the `events` table, the topic, a file of JSON lines |
| `job` | the audit by Spark: events sorted by share-partition, one machine after the other |
| `command` | what `kshare audit` does: reads, audits, prints, and says the exit code |
"""
