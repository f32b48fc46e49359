"""APIs that a gateway in front of an existing cluster answers after it asked the cluster, or instead of it."""
