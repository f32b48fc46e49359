"""`kshare up`: all roles on one machine.

Read first: `command` (the steps in order), then `plan` (nodes, ports, files and command lines), and `supervisor`
(starts, restarts and stops processes). `single_process` runs the same nodes in one event loop; `layout`
chooses between the two.
"""
