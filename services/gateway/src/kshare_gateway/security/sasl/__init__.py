"""SASL: the mechanisms by which clients authenticate, and the state of a connection's authentication."""
