"""`kshare groups`: list and describe groups, set their configs, reset their offsets, delete them.

`command_line` has the options; `group_requests` what is asked of the cluster; a file each for what a command does.
"""
