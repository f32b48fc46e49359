"""Pure state machines of the leader; start at `share_partition`."""
