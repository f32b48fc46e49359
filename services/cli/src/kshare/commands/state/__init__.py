"""`kshare state`: placement, content and maintenance of share-group state.

`command_line` has the options of all commands; each command is implemented in a file of its own beside it.
"""
