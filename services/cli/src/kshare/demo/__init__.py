"""`kshare demo`: share consumers on a temporary cluster, and an account of every order.

Read first: `account` (the invariants at the end), then `worker` (how each worker processes orders), `producer`,
`display` and `command` (starts everything, shows progress, cleans up).
"""
