"""An existing Kafka cluster on simulated hosts: brokers that speak the wire protocol under virtual time.

Nodes reach it with their own client (`kshare_upstream.cluster.Cluster`) over `host_connections`, simulated clients over
`support.simulation.connections`; both are subject to the faults of the simulated network. Read first: `replicated_log`
(what one partition holds), `partitions` (its leader, its in-sync replicas and its high watermark), `cluster` (topics,
brokers and the controller), `transactions`, `broker` (connections and requests), `log_apis`, `admin_apis`.

What the brokers promise is what Kafka promises with acks=all and clean elections: what was confirmed stays. What is
above the high watermark may be lost with its leader, and the watermark of a new leader is behind for a while (KIP-207).
`SimulatedUpstream.elect_uncleanly` breaks the promise on purpose.
"""
