"""Modules of scripts outside of packages, as those of deploy/observability."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]


def script(folder: str, name: str) -> ModuleType:
    """The module `name` of a folder below the repository's root, which may import its neighbours."""
    path = str(ROOT / folder)
    if path not in sys.path:
        sys.path.append(path)
    return importlib.import_module(name)
