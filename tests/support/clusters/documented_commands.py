"""Commands of our documents, as tests run them: what a page shows is what is tested."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path


def shell_after(page: Path, sentence: str) -> str:
    """The indented block that follows the paragraph with this sentence."""
    text = page.read_text()
    assert text.count(sentence) == 1, f"{page}: {sentence!r} is there {text.count(sentence)} times"
    block = re.search(r"\n\n((?:    .*\n|\n(?=    ))+)", text[text.index(sentence) :])
    assert block is not None, f"{page}: no block follows {sentence!r}"
    return textwrap.dedent(block[1])
