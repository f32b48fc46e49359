"""`kshare backup` and `kshare restore`: copies of all stores of a cluster on this machine, and a cluster made of them.

`stores` finds the stores of a data directory, `copies` makes a consistent copy of each, `manifest` says what a backup
has, `create` and `restore` are the commands.
"""
