"""RPC between the roles: typed methods, the channels that carry them, and the catalog follower.

Read first: `network` (the port: Method, Service, Channel, Network), then `generated.methods` (every RPC by name) and
`serving` (handlers). A role serves a `Service`; another role calls it through a `Channel`; `catalog` has the address.
Three networks carry the same objects:
`grpc_network` (between processes), `in_process_network` (`--single-process`) and the simulated network in tests.
"""

import os

# gRPC's fork handlers sometimes abort a child between fork and exec, because its poller finds its descriptor closed
# (grpc/grpc#43055): 5 of 100 starts of Spark's Java process. No child of ours calls gRPC before it executes a program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
