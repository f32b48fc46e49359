"""Kafka's wire protocol: frames, messages, the table of API versions, and record batches.

Reading order: `api_versions` (the APIs that are served), `framing` (frames and request headers), `messages` (bodies,
driven by kio's definitions), then `record_batches` and `record_reading`.
"""
