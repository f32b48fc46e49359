"""Clients of a Kafka cluster, for the command, the Spark library and tests.

| module | holds |
|---|---|
| `connection` | one blocking connection to one broker, with typed requests and responses, TLS and SASL |
| `client_security` | TLS and SASL by librdkafka's property names |
| `properties` | options `kafka.*` as properties of confluent-kafka |
| `topics` | partitions of topics, with the offsets where their logs begin and end |
| `range_reader` | the records of a range of plain offsets, exactly, with confluent-kafka |
| `redrive/` | dead letters and archived records, produced to their source topic again, each once |

confluent-kafka is used for every operation that it offers. `connection` sends any request in any version: the command
reads groups and states with it, Spark's share source is a group member with it, and tests send invalid requests.
"""
