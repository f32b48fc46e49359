"""`kshare attach`: kshare beside an existing cluster, which keeps the records."""
