"""A log in one partition of an existing cluster to which one owner writes, and others may try.

Kafka orders what is appended to a partition and keeps it, but lets everybody append. Here an owner *claims* the log:
it appends a claim with a higher epoch and a fresh producer id. A batch counts if its header has the producer id of the
last valid claim before it. So every reader of the same log agrees on which batches count, without a broker's help.

**Confirmation.** An owner expects its next batch at the offset after its last one. If the broker appended the batch
there, nothing came between. Else the owner reads what came between. A valid claim there means that the owner has lost
the log, and that its batch does not count. All readers skip other batches.

**Why what is confirmed stays.** The owner has folded everything up to its claim c. That it confirms a batch at b means
that there is no valid claim between c and b. The claim c' of a successor is above b, then what it folds holds the
batch; or below b, then the owner has seen c' and did not confirm. Assumed are the order within a partition, that
acknowledged records stay, and that a read returns committed ones. There are no clocks in it.

**Pruning.** An owner appends *marks*, which repeat its claim. The records before a confirmed mark may be deleted: a
reader takes a mark at the beginning of the log for the claim.

| module | holds |
|---|---|
| `claim` | the bytes of claims and marks |
| `fold` | which batches of a log count: a pure function of the log |
| `owner` | claiming, appending, confirming and pruning |
"""
