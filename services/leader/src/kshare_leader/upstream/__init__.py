"""Logs of an existing cluster, as share-partitions read them.

| module | holds |
|---|---|
| `pieces` | what one fetch brought: batches, and the transactions that were aborted among them |
| `window` | the pieces of one log that are in memory, within a limit; pure |
| `upstream_log` | the log of a partition over windows: what `kshare_leader.ports.TopicLog` asks for |
| `log_fetcher` | one Fetch at a time for each broker, isolation level and pace, for all logs of a node |
"""
