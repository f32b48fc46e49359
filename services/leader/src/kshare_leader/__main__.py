"""`python -m kshare_leader --node-id … --data-dir … --coordinator-address … [--config FILE] …`: one leader."""

from __future__ import annotations

import sys

from kshare_fastpath.memory import no_garbage_collection

with no_garbage_collection():
    from kshare_leader.process import main

if __name__ == "__main__":
    sys.exit(main())
