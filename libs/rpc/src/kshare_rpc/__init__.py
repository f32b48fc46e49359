"""RPC between the roles: typed methods, the channels that carry them, and the catalog follower.

Read first: `network` (the port: Method, Service, Channel, Network), then `methods` (every RPC by name). A role serves a
`Service`; another role calls it through a `Channel`; `catalog` has the address. Three networks carry the same objects:
`grpc_network` (between processes), `in_process_network` (`--single-process`) and the simulated network in tests.
"""
