"""Handlers of the coordinator's service, one class for each part: they turn messages into commands and back.

A StorageFailure is answered with a code that clients retry, never with a fatal one: KAFKA_STORAGE_ERROR for changes of
the catalog, COORDINATOR_NOT_AVAILABLE for groups and producer ids.
"""
