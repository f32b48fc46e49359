"""Committed offsets of all groups."""
