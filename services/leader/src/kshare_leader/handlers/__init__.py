"""Messages of the leader's APIs to calls of the logs, and back; one module for each API."""
