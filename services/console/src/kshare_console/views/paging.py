"""Pages of long lists: sorted rows after a key, at most so many, and those whose key has a text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kshare_console.refusal import bad_request

DEFAULT_LIMIT, MOST_LIMIT = 200, 1_000
LIMIT_DIGITS = 9
"""Characters of a limit: Python raises ValueError for thousands of digits."""
SEARCH_LIMIT = 300
"""Characters of a search."""

Json = Mapping[str, object]
Element = TypeVar("Element")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """`?after=KEY&limit=N&search=TEXT`."""

    after: str = ""
    limit: int = DEFAULT_LIMIT
    search: str = ""

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> PageRequest:
        """Refusal for a limit that is no number from 1 to MOST_LIMIT."""
        text = query.get("limit", str(DEFAULT_LIMIT))
        if not (len(text) <= LIMIT_DIGITS and text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_LIMIT):
            raise bad_request(f"limit must be a number from 1 to {MOST_LIMIT}, found {text[:20]!r}")
        return cls(query.get("after", ""), int(text), query.get("search", "")[:SEARCH_LIMIT])


def page_of(elements: Sequence[tuple[str, Element]], asked: PageRequest) -> tuple[list[Element], str | None, int]:
    """Elements after `asked.after`, the key of the last one if there are more, and the number of all that match.

    `elements` are pairs of key and element, sorted by key.
    """
    wanted = asked.search.casefold()
    found = [each for each in elements if wanted in each[0].casefold()] if wanted else elements
    start = bisect_right(found, asked.after, key=lambda each: each[0]) if asked.after else 0
    chosen = found[start : start + asked.limit]
    has_more = start + asked.limit < len(found)
    return [element for _, element in chosen], chosen[-1][0] if has_more else None, len(found)


def listing(items: Sequence[object], next_key: str | None, total: int | None) -> Json:
    """The JSON of a page; `total` is None where it is not known."""
    return {"items": list(items), "next": next_key, "total": total}


def place_key(topic: str, partition: int) -> str:
    """A key that sorts share-partitions by topic, then by number."""
    return f"{topic}:{partition:010d}"
