"""The `kshare` command.

Read first: `main` (the commands and their options), then `up` (starts and supervises the roles), `commands` (topics,
produce, consume, groups) and `demo`. `audit` proves the delivery rules over the delivery history, `redrive` moves dead
letters back. `kafka_connection` speaks the few requests that confluent-kafka has no call for.
"""
