"""How a page without scripts is laid out: Chromium shows it in frames of a width, light and dark, and measures them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

from support.environment.chromium import opened

SCHEMES = ("light", "dark")
MEASURE = """
function measured(frame) {
  const page = frame.contentDocument, width = frame.clientWidth, found = [];
  const name = (one) => `${one.tagName} ${one.getAttribute("class") || ""} ${one.textContent.slice(0, 40)}`;
  for (const one of page.body.querySelectorAll("*:not(nav *):not(.wide *):not(svg *)")) {
    if (one.getBoundingClientRect().right > width + 0.5) found.push("too wide: " + name(one));
  }
  let smallest = 99;
  for (const figure of page.querySelectorAll("figure")) {
    const around = figure.getBoundingClientRect();
    const places = [];
    for (const text of figure.querySelectorAll("svg text")) {
      const at = text.getBoundingClientRect();
      if (at.left < around.left || at.right > around.right) found.push("cut off: " + name(text));
      if (places.some((other) => at.left < other.right && at.right > other.left && at.top + 3 < other.bottom &&
          at.bottom > other.top + 3)) found.push("overlaps another: " + name(text));
      places.push(at);
      const drawn = text.ownerSVGElement;
      const scale = drawn.getBoundingClientRect().width / drawn.viewBox.baseVal.width;
      smallest = Math.min(smallest, scale * parseFloat(frame.contentWindow.getComputedStyle(text).fontSize));
    }
  }
  const wide = [page.documentElement.scrollWidth, ...Array.from(page.querySelectorAll(".wide"), (one) =>
    one.scrollWidth - one.clientWidth + width)];
  const style = frame.contentWindow.getComputedStyle(page.body);
  return {faults: found, smallest_text_px: smallest, width: Math.max(...wide), back: style.backgroundColor};
}
onload = () => {
  const found = Array.from(document.querySelectorAll("iframe"), measured);
  document.body.textContent = JSON.stringify(found);
};
"""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """A page in one width and colour scheme; `width` is that of its content, also of tables that could be scrolled."""

    scheme: str
    faults: list[str]
    smallest_text_px: float
    width: float
    back: str


def laid_out(page: Path, folder: Path, width: int) -> list[PageLayout]:
    """The layout in each of SCHEMES; `folder` is for files of Chromium and of this function."""
    content = escape(page.read_text(encoding="utf-8"))
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:900px;color-scheme:{scheme}" srcdoc="{content}"></iframe>'
        for scheme in SCHEMES
    )
    around = folder / "frames.html"
    head = f'<meta charset="utf-8"><script>{MEASURE}</script>'
    around.write_text(f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{frames}</body></html>')
    found = json.loads(opened(around, folder).one("body").text)
    return [PageLayout(scheme, **one) for scheme, one in zip(SCHEMES, found, strict=True)]
