"""Share groups (KIP-932): members, assignments, and the start and end of share-partition states."""
