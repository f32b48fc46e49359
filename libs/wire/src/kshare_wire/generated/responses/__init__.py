"""The responses of Kafka's protocol, a module for each API."""
