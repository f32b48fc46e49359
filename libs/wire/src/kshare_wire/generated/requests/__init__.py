"""The requests of Kafka's protocol, a module for each API."""
