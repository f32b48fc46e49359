"""`python -m kshare_gateway`: a gateway in its own process; `--help` names the flags."""

from __future__ import annotations

import sys

from kshare_fastpath.memory import no_garbage_collection

with no_garbage_collection():
    from kshare_gateway.process import main

if __name__ == "__main__":
    sys.exit(main())
