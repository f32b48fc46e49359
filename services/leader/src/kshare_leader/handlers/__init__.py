"""The handlers of the leader's APIs: they translate messages to calls of the logs and back; one module for each API."""
