"""A small blocking Kafka client: one connection to one broker, with typed requests and responses, TLS and SASL.

confluent-kafka is used for every operation that it offers. This client sends any request in any version: the command
line reads groups and states with it, Spark's share source is a group member with it, and tests send invalid requests.
"""
