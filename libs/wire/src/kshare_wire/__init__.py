"""Kafka's wire protocol: frames, messages, the table of API versions, and record batches.

Reading order: `api_versions` (ranges of versions, and features), `framing` (frames and request headers), `structs` and
`messages` (the typed messages below `generated`, and their codec), then `record_batches` and `record_reading`.
"""
