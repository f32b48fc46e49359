"""The gateway in front of an existing cluster (kshare.engine=kafka): docs/internals/upstream.md."""
