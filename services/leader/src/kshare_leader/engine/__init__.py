"""Where a leader's topic logs are: `embedded` has them on this node's disk, `kafka` in an existing cluster."""
