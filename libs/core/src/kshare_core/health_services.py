"""Service names of gRPC health checks that roles answer besides their own.

In a module of its own, without imports: a container's probe runs every few seconds.
"""

LIVENESS = "liveness"
"""SERVING as long as anything is answered."""
CLUSTER = "cluster"
"""SERVING where the role and the whole cluster can serve, at roles that know the catalog."""
CLUSTER_PROBLEMS_KEY = "kshare-problems-bin"
"""Trailing metadata of a CLUSTER check: the problems in words, in UTF-8."""
