"""Arguments of the command line whose bytes are no UTF-8.

Python decodes an argument, a variable or a file's name that is not UTF-8 to a text with surrogates, which nothing can
encode. `kshare produce` sends such values and keys as they are, and files may have such names. Everything else refuses
them: names of topics, groups and configs are UTF-8.
"""

from __future__ import annotations

SHOWN_CHARACTERS = 60
"""Characters of a text that are shown before and after those that cannot be encoded."""
_SURROGATES_OF_BYTES = range(0xDC80, 0xDD00)


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode the text: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def argument_that_is_not_utf8(error: UnicodeEncodeError) -> str | None:
    """The argument that could not be encoded, as Python writes it; None if the error has another cause."""
    if ord(error.object[error.start]) not in _SURROGATES_OF_BYTES:
        return None
    return repr(error.object[max(0, error.start - SHOWN_CHARACTERS) : error.start + SHOWN_CHARACTERS])
