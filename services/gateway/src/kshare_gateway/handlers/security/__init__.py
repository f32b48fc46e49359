"""The APIs of security features: what Kafka answers without an authorizer, users and quotas."""
