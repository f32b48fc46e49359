"""`python -m kshare` is the `kshare` command."""

from kshare.main import main

main()
