"""Pure machines of the leader; start at `share_partition`."""
