"""Handlers of the calls about share sessions and share-partitions."""
