"""Messages to commands and back, one class for each part of the coordinator's service.

A StorageFailure is answered with a code that clients retry, never with one that ends them: KAFKA_STORAGE_ERROR for
changes of the catalog, COORDINATOR_NOT_AVAILABLE for groups and producer ids.
"""
