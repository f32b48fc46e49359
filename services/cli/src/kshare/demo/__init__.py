"""`kshare demo`: real share consumers on a cluster of its own, and an account of every order.

Read first: `account` (what must hold in the end), then `worker` (what each worker does with the orders that it gets),
`producer`, `display` and `command` (starts everything, shows progress, cleans up).
"""
