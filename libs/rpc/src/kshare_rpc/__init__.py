"""How the roles speak: typed methods, channels that carry them, and the follower of the catalog.

Read first: `network` (the port: Method, Service, Channel, Network), then `methods` (every RPC by name). A role serves a
`Service`; another role calls it through a `Channel`; `catalog` finds the address. Three networks carry the same
objects: `grpc_network` (between processes), `in_process_network` (`--single-process`) and the simulation's in tests.
"""
