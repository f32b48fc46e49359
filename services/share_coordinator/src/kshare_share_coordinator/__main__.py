"""`python -m kshare_share_coordinator --node-id … --data-dir … …`: the share coordinator as a process."""

from __future__ import annotations

import sys

from kshare_fastpath.memory import no_garbage_collection

with no_garbage_collection():
    from kshare_share_coordinator.process import main

if __name__ == "__main__":
    sys.exit(main())
