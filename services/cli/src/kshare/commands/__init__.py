"""The commands that work on a running cluster: topics, produce, consume, groups."""
