"""The current problems with an existing cluster, reported at a bounded rate."""

from __future__ import annotations

from collections.abc import Callable

SUBJECTS_LIMIT = 1_000
SHOWN_LIMIT = 20
REPORT_INTERVAL_MS = 10_000
REPORTS_PER_INTERVAL = 10


class Problems:
    """One problem for each subject, such as a partition or a broker.

    A problem is reported when it begins or changes, at most REPORTS_PER_INTERVAL times in REPORT_INTERVAL_MS. The first
    report after a pause says how many were left out.
    """

    def __init__(self, report: Callable[[str], None], now_ms: Callable[[], int]) -> None:
        self._report = report
        self._now_ms = now_ms
        self._texts: dict[str, str] = {}
        self._interval_began_ms = -REPORT_INTERVAL_MS
        self._reports = 0
        self._left_out = 0

    def note(self, subject: str, text: str) -> None:
        """A subject has a problem now."""
        is_known = self._texts.get(subject) == text
        if subject in self._texts or len(self._texts) < SUBJECTS_LIMIT:
            self._texts[subject] = text
        if not is_known:
            self._say(f"{subject}: {text}")

    def solved(self, subject: str) -> None:
        if self._texts.pop(subject, None) is not None:
            self._say(f"{subject}: works again")

    def forget(self, subject: str) -> None:
        """A subject is not used any more."""
        self._texts.pop(subject, None)

    def happened(self, subject: str, text: str) -> None:
        """Reports what is over already, and no problem of the subject from now on."""
        self._say(f"{subject}: {text}")

    def texts(self) -> list[str]:
        """The current problems, at most SHOWN_LIMIT of them."""
        shown = [f"{subject}: {text}" for subject, text in list(self._texts.items())[:SHOWN_LIMIT]]
        if len(self._texts) > SHOWN_LIMIT:
            shown.append(f"{len(self._texts) - SHOWN_LIMIT} more problems with the existing cluster")
        return shown

    def _say(self, text: str) -> None:
        now_ms = self._now_ms()
        if now_ms - self._interval_began_ms >= REPORT_INTERVAL_MS:
            self._interval_began_ms, self._reports = now_ms, 0
        if self._reports >= REPORTS_PER_INTERVAL:
            self._left_out += 1
            return
        self._reports += 1
        more = f" ({self._left_out} more lines like this were left out)" if self._left_out else ""
        self._left_out = 0
        self._report(f"existing cluster: {text}{more}")
