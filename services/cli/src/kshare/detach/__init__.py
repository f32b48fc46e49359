"""`kshare detach`: the share groups of a kshare in front of a cluster go on as that cluster's own share groups.

The records are in the cluster already, at the same offsets, so a group's own share group in the cluster gets the start
offsets that the group has at kshare. `plan` says what is set and what forbids it, `command` reads, sets and compares.
"""
