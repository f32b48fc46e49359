"""Large buffers are kept by the process, and garbage is collected rarely, during imports not at all."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys

import pytest

from kshare_fastpath.memory import no_garbage_collection

PROGRAM = """
import resource, sys
from kshare_fastpath.memory import keep_large_buffers
if sys.argv[1] == "keep":
    assert keep_large_buffers()
for _ in range(20):
    bytearray(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    bytearray(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    result = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(result.stdout)


def test_a_large_buffer_costs_no_page_faults_again() -> None:
    pages = 20 * 8_000_000 // resource.getpagesize()
    assert faults("keep") < pages // 10


def test_only_young_objects_are_looked_at_often() -> None:
    program = (
        "import gc; from kshare_fastpath.memory import collect_garbage_rarely; collect_garbage_rarely();"
        "print(*gc.get_threshold(), gc.get_freeze_count() > 1_000)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["20000", "10", "100", "True"]


def test_nothing_is_collected_during_imports_and_then_as_before() -> None:
    assert gc.isenabled()
    try:
        with pytest.raises(ImportError), no_garbage_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > 1_000
        gc.disable()
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()
