"""Transactions: producers, partitions and offsets in them, and their end."""
