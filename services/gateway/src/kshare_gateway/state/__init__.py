"""Share-group state on the Kafka port: code shared by the handlers of keys 83 to 87."""
