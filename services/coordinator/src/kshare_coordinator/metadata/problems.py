"""Problems of a store, one line for each area; the health check shows them, and each is logged once."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Problems:
    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def note(self, area: str, text: str) -> None:
        if area not in self._texts:
            log.warning("%s", text)
        self._texts[area] = text

    def clear(self, area: str) -> None:
        if self._texts.pop(area, None) is not None:
            log.info("%s: recovered", area)

    def texts(self) -> list[str]:
        return list(self._texts.values())
