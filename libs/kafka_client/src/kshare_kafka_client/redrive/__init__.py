"""Redrive: appends dead letters (KIP-1191) and archived records to their source topic again.

A record goes to its former partition, with headers that name its origin (`__redrive.topic`, `__redrive.partition`,
`__redrive.offset`). Every group of the topic then receives it.

Each record is moved once, over repeated and killed runs: one Kafka transaction has the moved records and a note of them
in the compacted topic `__kshare_redrive`. The transactional id belongs to the partition that is emptied. So a second
run at the same time fences the first one, and it reads the notes before it moves anything.

| module | holds |
|---|---|
| `request` | the request, and the account of the moved records |
| `candidates` | a record that may be moved; what a dead letter's headers say |
| `sources`, `archived_runs` | the offsets to look at: dead-letter topics, given offsets, the delivery history |
| `originals` | the source records of dead letters without a copy |
| `ledger`, `mover`, `pace` | the notes, the transactions, the rate |
| `direct` | the engine without Spark: one process, for up to some hundred thousand |

The command and the console use it; the command's engine for millions is `kshare.redrive.spark`.
"""
