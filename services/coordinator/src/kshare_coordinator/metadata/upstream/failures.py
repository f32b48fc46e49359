"""The errors of calls to the existing cluster after which the call may be repeated later."""

from __future__ import annotations

from kshare_upstream.connection import NotServed
from kshare_upstream.partition_log import Refused
from kshare_upstream.sasl import AuthenticationFailed

UPSTREAM_FAILURES = (OSError, Refused, NotServed, AuthenticationFailed)
"""OSError: ConnectionLost, LeaderUnknown and OutcomeUnknown."""
RETRY_INTERVAL_MS = 200
