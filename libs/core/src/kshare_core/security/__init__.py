"""Kafka's model of authorization: resources, operations, ACLs and principals; and entities of quotas."""
