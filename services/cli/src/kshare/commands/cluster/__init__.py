"""Commands about a whole cluster: `kshare top`, `kshare doctor` and `kshare client-config`.

`command_line` has the options.
"""
