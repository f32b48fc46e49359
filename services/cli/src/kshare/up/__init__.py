"""`kshare up`: all roles on one machine.

Read first: `command` (what happens in which order), then `plan` (which process is started how, and its files), and
`supervisor` (starts, restarts and stops them). `single_process` runs the same nodes in one event loop.
"""
