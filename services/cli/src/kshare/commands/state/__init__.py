"""`kshare state`: where share-group state lies, and what is in it.

`command_line` has the options of each command; what a command does is in a file of its own beside it.
"""
