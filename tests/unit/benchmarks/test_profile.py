"""Stacks that py-spy saw are summed up by the package and by the function that ran."""

from __future__ import annotations

from collections import Counter

from benchmarks.profile.samples import profile_of

STACKS = """\
main (kshare_leader/__main__.py:90);run (asyncio/runners.py:118);write (kshare_rpc/http2/exchange.py:40) 3
main (kshare_leader/__main__.py:90);write (kshare_rpc/http2/exchange.py:47) 2
main (kshare_leader/__main__.py:90);index_of (kshare_leader/machine/interval_map.py:7) 4
read (<string>:2) 1
""".splitlines()


def test_the_innermost_function_has_the_sample_whoever_called_it() -> None:
    found = profile_of(STACKS)
    assert found.samples == 10
    assert found.packages == Counter({"kshare_rpc": 5, "kshare_leader": 4, "<string>": 1})
    assert found.functions == Counter(
        {
            "write (kshare_rpc/http2/exchange.py)": 5,
            "index_of (kshare_leader/machine/interval_map.py)": 4,
            "read (<string>)": 1,
        }
    )
