"""Kafka's wire: frames, messages, the table of API versions, and record batches.

Read first: `api_versions` (what is served), `framing` (frames and request headers), `messages` (bodies, driven by kio's
definitions), then `record_batches` and `record_reading`.
"""
