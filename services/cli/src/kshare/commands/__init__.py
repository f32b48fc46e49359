"""The commands that work on a running cluster, or on a share coordinator's store."""
