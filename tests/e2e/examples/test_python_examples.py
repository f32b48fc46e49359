"""The Python programs of examples/, run as their READMEs say, against the four processes."""

from __future__ import annotations

import re

from support.clients.delivery import wait_for
from support.clients.examples import LIMIT_S, command_lines, run, worker


def test_python_worker_accepts_each_order_and_releases_one_that_fails(bootstrap: str) -> None:
    *preparation, start, produce = command_lines("python-worker")
    for line in preparation:
        run(line, bootstrap)
    own = ["--bootstrap", bootstrap]
    with worker(start, bootstrap, *own) as first, worker(start, bootstrap, *own) as second:
        run(produce, bootstrap)
        run('.venv/bin/kshare produce orders ""', bootstrap)
        wanted = {"processed first order", "processed second order", "failed at delivery 2: an order without a text"}
        wait_for(lambda: wanted <= {*first, *second}, "both workers together print each outcome", LIMIT_S)
    processed = [line for line in [*first, *second] if line.startswith("processed")]
    assert sorted(processed) == ["processed first order", "processed second order"], "each is accepted once"
    assert "failed at delivery 1: an order without a text" in [*first, *second]


def test_payments_that_fail_three_times_are_dead_letters(bootstrap: str) -> None:
    *preparation, clear, read = command_lines("retry-and-dead-letters")
    for line in preparation:
        run(line, bootstrap)
    cleared = run(clear, bootstrap, "--bootstrap", bootstrap).splitlines()
    tries = [f"failed\t{delivery}\tpay 20 of a closed account\tthe account is closed" for delivery in (1, 2, 3)]
    assert sorted(cleared) == ["cleared\t1\tpay 10", "cleared\t1\tpay 30", *tries]
    source, reason, value = run(read, bootstrap, "--bootstrap", bootstrap).rstrip("\n").split("\t")
    assert re.fullmatch(r"payments:0:[0-2]", source)
    assert (reason, value) == ("Offset delivery count exceeded the threshold.", "pay 20 of a closed account")
