"""Service names of gRPC health checks that roles answer in addition to their own.

This module has no imports, because a container's probe starts every few seconds.
"""

LIVENESS = "liveness"
"""SERVING as long as the process answers at all."""
CLUSTER = "cluster"
"""SERVING when the role and the whole cluster can serve; for roles that know the catalog."""
CLUSTER_PROBLEMS_KEY = "kshare-problems-bin"
"""The trailing metadata key of a CLUSTER check: the problems in words, in UTF-8."""
