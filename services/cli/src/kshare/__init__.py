"""The `kshare` command.

Read first: `main` (the commands and their options), then `up` (starts and supervises the roles), `commands` (topics,
produce, consume, groups) and `demo`. `kafka_connection` speaks the few requests that confluent-kafka has no call for.
"""
