"""Sphinx's configuration of the docs site: Markdown files of the repository as pages, by `make docs`.

The source folder is the repository's root, so that README.md and CONTRIBUTING.md are pages and relative links mean the
same on the site as in the repository. `make docs` makes an error of every warning: a dead link, a dead anchor, a page
in no table of contents.
"""

from __future__ import annotations

project = "kshare"
author = "kshare's contributors"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
include_patterns = [
    "README.md",
    "DESIGN.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/**.md",
    "deploy/**.md",
    "helm/kshare/README.md",
    "examples/**.md",
    "tests/simulation/README.md",
]
nitpicky = True

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

html_theme = "alabaster"
html_title = "kshare"
html_extra_path = ["site"]  # index.html, which leads to docs/index.html
html_copy_source = False
html_show_sphinx = False
