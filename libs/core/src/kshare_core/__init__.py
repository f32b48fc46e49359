"""Ids, record states, error codes and config definitions; uses the standard library only.

Read first: `errors` (Kafka's codes), `states` (record states and acknowledge types), `configs` (Kafka's config names),
`identifiers` (topic ids, share-partition keys and their hash).
"""
