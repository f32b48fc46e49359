"""Dead letters (KIP-1191): rejected and exhausted records go to their group's dead-letter topic, each exactly once.

The path of a record: Acquired → Archiving, written to the share coordinator → its dead letter appended to the
dead-letter topic, at the leader of partition `source partition % partitions` → Archived, written → the start offset
passes it. After a crash at any of these steps the next leader finds the record Archiving and sends its dead letter
again. The receiver knows which offsets it has appended, because it wrote them atomically with the records.

Read first: `service` (rounds, retries, refusals), `destination` (the destination partition), `letters` (the records),
`unfinished` (how a share-partition without fetches continues after a restart), `appended` (the receiver's state; the
receiver itself is `handlers/append_dead_letters.py`).
"""
