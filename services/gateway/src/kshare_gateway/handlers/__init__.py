"""One module for each Kafka API that the gateway serves; `kshare_gateway.dispatch` finds them all.

A handler reads the request as a `Message` (fields of the newest version) and answers with nested dicts; see
`kshare_wire.messages`. Each module's text says which versions it serves, what it does, and what it leaves out.
"""
