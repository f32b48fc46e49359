"""An asyncio client of an existing Kafka cluster, for the kafka engine.

| module | holds |
|---|---|
| `connection` | one connection to one broker: typed requests, many under way at once, TLS and SASL |
| `cluster` | the brokers and partition leaders of the cluster, and requests sent to the right one |
| `port` | what the rest of kshare needs of a cluster; the simulation has one of its own |
| `sasl` | PLAIN and SCRAM |
| `doctor` | what a cluster can do, and what is missing, in words |

confluent-kafka and aiokafka decode every record, which makes them 5 to 20 times slower than this client where records
are passed on; and neither tells the base offset of a single Produce request, on which fencing depends.
"""
