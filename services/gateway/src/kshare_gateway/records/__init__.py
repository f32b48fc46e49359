"""Records between clients and leaders: the batch cache, read-ahead, and retries of requests."""
