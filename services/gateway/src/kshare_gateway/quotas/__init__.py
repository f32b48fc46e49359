"""Client quotas: rates that a user, a client id or an address may have, and how long to throttle beyond them."""
