"""Dead letters (KIP-1191): rejected and exhausted records go to their group's dead-letter topic, each exactly once.

The way of a record: Acquired → Archiving, written to the share coordinator → its dead letter appended to the
dead-letter topic, at the leader of partition `source partition % partitions` → Archived, written → the start offset
passes it. After a crash at any of these steps the next leader finds the record Archiving and sends its dead letter
again; the receiver knows which offsets it has appended, because it wrote that together with them.

Read first: `service` (when something is sent, retries, what a refusal means), `destination` (where to), `letters`
(what a dead letter is), `unfinished` (how a share-partition that nobody fetches from goes on after a restart),
`appended` (what the receiver remembers; the receiver itself is `handlers/append_dead_letters.py`).
"""
