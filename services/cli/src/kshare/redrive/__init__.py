"""Redrive: dead letters (KIP-1191) and archived records back to the topic they came from.

What is moved is appended to its source topic again, to the same partition, with headers that say from where
(`__redrive.topic`, `__redrive.partition`, `__redrive.offset`); every group of the topic sees it then.

Moved once, however often it is run and wherever it is killed: the moved records and a note of what was moved, in the
compacted topic `__kshare_redrive`, are one Kafka transaction. The transactional id belongs to the partition that is
emptied, so a second run at the same time ends the first one's, and whoever has it reads the notes first.

| module | holds |
|---|---|
| `request` | what is asked for, and the account of what was done |
| `candidates` | a record that may be moved; what a dead letter's headers say |
| `sources`, `archived_runs` | which offsets are looked at: dead-letter topics, given offsets, the delivery history |
| `originals` | the records that dead letters without a copy are of |
| `ledger`, `mover`, `pace` | the notes, the transactions, the rate |
| `direct` | the engine without Spark: one process, for up to some hundred thousand |
| `spark` | the same with Spark: many partitions at once, SQL expressions; only this module imports pyspark |
| `engine` | chooses |
"""
