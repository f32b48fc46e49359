"""Calls to the coordinator of a transactional id."""
