"""Consumer groups (KIP-848), with members of the classic protocol and migration both ways."""
