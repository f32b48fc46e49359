"""Options of the whole test suite.

`--hypothesis-profile slow` is for models that then take many more steps than in a plain run: `make model-slow`.
"""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Generator
from threading import Thread

import pytest
from hypothesis import settings

from support.clusters.engine_exclusions import reason_of
from support.clusters.engines import VARIABLE, TestEngine, engine_of_tests
from support.environment.turns import forget, turn

# The processes that tests start keep their compiled code, as a user's do: without it half a second of each start is
# compiling.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell without job control starts what it runs in the background with SIGINT ignored, and every process that tests
# start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

COLLECTED_WITHIN_S = 10.0

# Hypothesis draws the same examples in each run where CI is set; here every run looks for others.
settings.register_profile("plain", deadline=None, derandomize=False)
settings.register_profile("slow", deadline=None, derandomize=False)
settings.load_profile("plain")  # no deadline: an example that takes long says something of the machine only


LONG = (
    "tests/deploy/test_compose.py",
    "tests/pipeline/tables/test_history_tables.py",
    "tests/pipeline/marts/test_marts.py",
    "tests/pipeline/tables/test_pipeline_service.py",
    "tests/spark/share_source/test_share_faults.py",
    "tests/deploy/test_quickstart.py",
    "tests/e2e/cluster/test_several_coordinators.py",
    "tests/e2e/attach/test_several_of_each_role.py",
    "tests/e2e/examples/test_spark_example.py",
    "tests/e2e/failures/test_kill.py",
    "tests/e2e/cluster/test_reassignment.py",
    "tests/spark/audit/test_audit_of_killed_cluster.py",
    "tests/spark/audit/test_audit_by_spark.py",
    "tests/simulation/test_broken_rules.py",
    "tests/model/coordinator/test_machine.py",
    "tests/simulation/test_seeds.py",
)
"""The files of half a minute and more, the longest first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seeds", type=int, default=None, metavar="N", help="simulate seeds 1 to N (tests/simulation)")
    parser.addoption(
        "--engine", choices=[*TestEngine], default=None, help="the engine of the end-to-end tests (support/clusters)"
    )
    group.addoption("--seed", type=int, default=None, metavar="S", help="simulate seed S only (tests/simulation)")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    with turn(quiet=item.get_closest_marker("quiet") is not None):
        result = yield
    if nextitem is not None and nextitem.path != item.path:
        if not item.session.testsfailed:
            _collect_garbage()
        _leave_out_of_collections()
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no process works alone at the end: LONG, then those with processes."""
    items.sort(key=_place)
    engine = engine_of_tests()
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if (reason := reason_of(item.nodeid, parameters, engine)) is not None:
            item.add_marker(pytest.mark.skip(reason=f"not on {engine}: {reason}"))


def _place(item: pytest.Item) -> int:
    path = item.path.relative_to(item.config.rootpath).as_posix()
    return LONG.index(path) if path in LONG else len(LONG) + (not {"deploy", "e2e"} & {*item.path.parts})


def pytest_collection_finish() -> None:
    _leave_out_of_collections()


def _collect_garbage() -> None:
    """In a thread of its own: the end of a client may wait, and pytest's timeouts do not cover what is between tests.

    After COLLECTED_WITHIN_S the next test begins beside it.
    """
    collecting = Thread(target=gc.collect, name="collect-garbage", daemon=True)
    collecting.start()
    collecting.join(COLLECTED_WITHIN_S)


def _leave_out_of_collections() -> None:
    """What is there now stays to the end, most of it: collecting garbage after each test does not look at it again.

    Garbage must be collected before: a Kafka client within it would try to reach its cluster, which is gone, to the end
    of the run, and take processor time from the tests that measure. Only after a failure nothing is collected, because
    the client of a test that failed may wait for its cluster for long.
    """
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Names the run, where there are several processes, before pytest-xdist does; tells processes the engine."""
    if config.getoption("--engine"):
        os.environ[VARIABLE] = config.getoption("--engine")
    if getattr(config.option, "testrunuid", "") is None:
        config.option.testrunuid = uuid.uuid4().hex


def pytest_sessionfinish(session: pytest.Session) -> None:
    run = getattr(session.config.option, "testrunuid", None)
    if run is not None and not hasattr(session.config, "workerinput"):
        forget(run)
