"""A small blocking Kafka client: one connection to one broker, with typed requests and responses, TLS and SASL.

confluent-kafka is the client for everything that it has a call for. This one sends any request of any version: the
command line asks about groups and states with it, Spark's share source is a member with it, and tests send what no
client would.
"""
