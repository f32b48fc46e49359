"""Share-group state on the Kafka port: what the handlers of keys 83 to 87 share."""
