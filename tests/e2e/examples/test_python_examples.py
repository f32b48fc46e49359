"""The Python programs of examples/, run as their READMEs say, against the four processes."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_payments_that_fail_three_times_are_dead_letters(bootstrap: str, tmp_path: Path) -> None:
    *preparation, clear, read = command_lines("retry-and-dead-letters")
    for line in preparation:
        run(line, bootstrap)
    (tmp_path / "payment").write_bytes(b"\xff 40")
    run(".venv/bin/kshare produce payments --file", bootstrap, str(tmp_path / "payment"))
    cleared = run(clear, bootstrap, "--bootstrap", bootstrap).splitlines()
    tries = [f"failed\t{delivery}\tpay 20 of a closed account\tthe account is closed" for delivery in (1, 2, 3)]
    problem = "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
    not_utf8 = [f"failed\t{delivery}\t\\xff 40\t{problem}" for delivery in (1, 2, 3)]
    assert sorted(cleared) == ["cleared\t1\tpay 10", "cleared\t1\tpay 30", *sorted([*tries, *not_utf8])]
    letters = [line.split("\t") for line in run(read, bootstrap, "--bootstrap", bootstrap).splitlines()]
    assert all(re.fullmatch(r"payments:0:[0-3]", source) for source, _, _ in letters)
    reason = "Offset delivery count exceeded the threshold."
    assert sorted(told for _, *told in letters) == [[reason, "\\xff 40"], [reason, "pay 20 of a closed account"]]
