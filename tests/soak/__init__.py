"""The soak: mixed load on a `kshare up` for hours, with a fault every 20 s, and an account of every record.

`make soak HOURS=2` runs it. Read first: `ledger` (what is counted as lost or redelivered), then `load` and `faults`;
`samples` looks at the processes, `verdict` judges, `page` draws.
"""
