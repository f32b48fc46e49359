"""The metadata store in a topic of an existing cluster: one active coordinator owns everything, standbys read along.

Partition 0 of the topic is a fenced log (`kshare_upstream.fenced_log`) of appends and snapshots; partition 1 has the
addresses of live coordinators. Start with `store`.

**Lease.** The active coordinator counts its lease from when it sent its last confirmed record, and appends a mark when
it has written nothing else for a third of a lease. A standby counts the same lease from when it read the last record
that counts, or does not wait if that is a resignation. Then it claims the log. It serves once its claim is confirmed
and that time has passed, also for records that it read with the claim only. So two coordinators never serve at once,
if their clocks run at the same rate; and whatever their clocks do, only the newest claim's appends are confirmed.

**Unknown outcomes.** After an append without a response the coordinator claims again within its lease, reads the log
up to this claim, and so learns whether the append counts. If it does not, it is written again.

| module | holds |
|---|---|
| `records` | the bytes of appends and snapshots, in pieces |
| `rows` | the rows after the records of a log: a pure function of the log |
| `tail` | what a standby has read, and when the log becomes free |
| `session` | the time of a coordinator as the owner: lease, appends, snapshots |
| `members` | partition 1: which coordinators live |
| `topic` | the topic |
| `store` | the MetadataStore |
"""
