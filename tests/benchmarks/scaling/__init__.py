"""What a record costs as one thing grows, and whether that cost stays flat: `make bench BENCH=--scaling`.

`scenarios` has what is measured, `idle_members` the members beside a drain, `flatness` the factor over the sizes.
"""
