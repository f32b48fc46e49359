"""`kshare groups`: list and describe groups, set their configs, reset their offsets, delete them.

`command_line` has the options, `group_requests` the requests to the cluster; `listing` and `reset` implement commands.
"""
