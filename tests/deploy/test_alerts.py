"""Alerts: their rules come from one table, ring when they must and not before, and never for another release."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.clusters.kubernetes import CHART, helm_environment, run
from support.environment.prometheus import binary
from support.house.scripts import ROOT, script
from support.observability.alert_cases import CASES, OF_FIRST_EVENTS, Case

RUNBOOK = ROOT / "docs/runbook.md"
PLAIN = ROOT / "deploy/observability/alerts.yaml"
OWN = {"namespace": "n", "release": "queues"}
BESIDE = {"namespace": "n", "release": "beside"}
NEEDS_ITS_OWN = {"KshareNoActiveCoordinator", "KshareFewerThanExpected", "KshareRoleDown"}
"""Alerts on what is missing: they ring where a release has no samples at all."""
OF_A_ROLE = {"KshareFewerThanExpected", "KshareRoleDown"}
"""Alerts on numbers of pods, which only the chart knows."""

table = script("deploy/observability", "alert_table")
writer = script("deploy/observability", "alerts")
dashboards = script("deploy/observability", "dashboard_tables")


def promtool(folder: Path, *arguments: str) -> None:
    done = subprocess.run([binary("promtool"), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def names() -> list[str]:
    return [alert.name for alert in table.ALERTS]


def severity_of(name: str) -> str:
    return str(next(alert.severity for alert in table.ALERTS if alert.name == name))


def chart_rules(*values: str) -> str:
    """The rules of release queues in namespace n, as a file for Prometheus."""
    command = ["helm", "template", "queues", str(CHART), "--kube-version", "1.36.3", "--namespace", "n"]
    command += [
        "--set",
        "image.registry=registry.example.com,metrics.prometheusRule.enabled=true",
        "--show-only",
        "templates/prometheusrule.yaml",
    ]
    command += [word for value in values for word in ("--set", value)]
    text = run(*command, environment=helm_environment())
    lines = text[text.index("\nspec:\n") + len("\nspec:\n") :].splitlines()
    return "\n".join(line.removeprefix("  ") for line in lines) + "\n"


def labelled(series: Mapping[str, str], labels: Mapping[str, str]) -> list[dict[str, str]]:
    more = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return [{"series": name.replace("{", f"{{{more},") if more else name, "values": series[name]} for name in series]


def rings(case: Case, labels: Mapping[str, str]) -> list[dict[str, object]]:
    """What promtool expects while the alert rings, once."""
    found = {**case.labels, **labels, "severity": severity_of(case.alert)}
    texts = {"summary": case.summary, "runbook_url": writer.runbook_url(case.alert)}
    return [{"exp_labels": found, "exp_annotations": texts}]


Expectations = Callable[[Case], list[tuple[int, object]]]


def promtool_tests(
    cases: Iterable[Case], series: Callable[[Case], list[dict[str, str]]], expected: Expectations
) -> list[dict[str, object]]:
    """promtool's tests of all cases. Cases with different metrics share one, since each test evaluates every rule."""
    shared: list[tuple[set[str], dict[str, Any]]] = []
    for case in cases:
        metrics = {name.partition("{")[0] for name in (*case.series, *case.healthy)}
        test = next((test for taken, test in shared if not taken & metrics), None)
        if test is None:
            test = {"interval": "1m", "input_series": [], "alert_rule_test": []}
            shared.append((set(), test))
        next(taken for taken, other in shared if other is test).update(metrics)
        test["input_series"] += series(case)
        test["alert_rule_test"] += [
            {"eval_time": f"{at}m", "alertname": case.alert, "exp_alerts": alerts} for at, alerts in expected(case)
        ]
    return [test for _, test in shared]


def check(folder: Path, rules: str, tests: Sequence[dict[str, object]]) -> None:
    (folder / "rules.yaml").write_text(rules)
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": list(tests)}
    (folder / "test.yaml").write_text(json.dumps(document))  # JSON is YAML
    promtool(folder, "check", "rules", "rules.yaml")
    promtool(folder, "test", "rules", "test.yaml")


def test_the_files_are_what_the_table_says() -> None:
    for path, text in writer.written_files().items():
        assert path.read_text() == text, "run python deploy/observability/alerts.py"


def test_every_alert_has_a_case_and_a_section_of_the_runbook() -> None:
    assert [case.alert for case in CASES] == names()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL))
    assert list(sections) == names()
    for name, text in sections.items():
        assert re.findall(r"^\*\*(.+?):\*\*", text, re.MULTILINE) == ["Means", "Look at", "Do"], name


def test_dashboards_and_panels_that_the_runbook_names_exist() -> None:
    """In a section, names in italics are a dashboard's, or those of panels of the dashboard named before."""
    panels = {each.title: {panel.title for panel in each.panels} for each in dashboards.DASHBOARDS.values()}
    found = set()
    for section in re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]:
        dashboard = ""
        for name in re.findall(r"(?<![*`\w])\*([^*]+)\*(?![*\w])", section):
            title = " ".join(name.split())
            if title.startswith("kshare "):
                dashboard = title
                assert dashboard in panels, f"{section.split()[0]}: there is no dashboard {dashboard}"
            elif dashboard:
                assert title in panels[dashboard], f"{section.split()[0]}: {dashboard} has no panel {title}"
                found.add((dashboard, title))
    assert {dashboard for dashboard, _ in found} == set(panels), "each dashboard helps with some alert"


def test_alerts_of_one_cluster_ring_when_they_must_and_not_before(tmp_path: Path) -> None:
    tests = promtool_tests(
        [case for case in CASES if case.alert not in OF_A_ROLE],
        lambda case: labelled(case.series, {}),
        lambda case: [(case.quiet_at, []), (case.rings_at, rings(case, {}))],
    )
    check(tmp_path, PLAIN.read_text(), tests)


@pytest.mark.parametrize("labels", [{}, OWN], ids=["one-cluster", "chart"])
def test_the_first_event_of_a_series_rings_until_its_window_has_passed(
    tmp_path: Path, labels: Mapping[str, str]
) -> None:
    tests = promtool_tests(
        OF_FIRST_EVENTS,
        lambda case: labelled(case.series, labels),
        lambda case: [(case.quiet_at, []), (case.rings_at, rings(case, labels)), (75, [])],
    )
    check(tmp_path, chart_rules() if labels else PLAIN.read_text(), tests)


@pytest.mark.parametrize("gap", ["stale", "_x30", "_x120"], ids=["failed-scrape", "half-an-hour", "two-hours"])
def test_a_series_that_had_no_sample_for_a_while_rings_for_new_events_only(tmp_path: Path, gap: str) -> None:
    """Prometheus ends all series of a target at each failed scrape; a leader shows those of 1,000 share-partitions."""
    cases = [case._replace(series=dict.fromkeys(case.series, f"7x74 stale {gap} 7x70 9x5")) for case in OF_FIRST_EVENTS]
    begins = 76 + (1 if gap == "stale" else int(gap.removeprefix("_x")))
    quiet: list[tuple[int, object]] = [(at, []) for at in range(74, begins + 70)]
    tests = promtool_tests(cases, lambda case: labelled(case.series, {}), lambda _: quiet)
    check(tmp_path, PLAIN.read_text(), tests)


@pytest.mark.parametrize(("values", "count"), [("9x70", 2), ("3x70", 3)], ids=["same-process", "restarted"])
def test_events_while_a_series_had_no_sample_ring(tmp_path: Path, values: str, count: int) -> None:
    cases = [
        case._replace(
            series=dict.fromkeys(case.series, f"7x74 stale _x30 {values}"),
            summary=re.sub(r"\b\d+(?= (records|calls|offsets))", str(count), case.summary),
        )
        for case in OF_FIRST_EVENTS
    ]
    tests = promtool_tests(
        cases, lambda case: labelled(case.series, {}), lambda case: [(100, []), (108, rings(case, {}))]
    )
    check(tmp_path, PLAIN.read_text(), tests)


def test_without_the_chart_clusters_are_told_apart_by_the_label_release(tmp_path: Path) -> None:
    """As in docker-compose.yml with the profile kafka: one active coordinator in each cluster is as it should be."""
    case = next(case for case in CASES if case.alert == "KshareNoActiveCoordinator")
    both = labelled(case.healthy, {"release": "kshare"}) + labelled(case.series, {"release": "attached"})
    expected: list[tuple[int, object]] = [
        (case.quiet_at, []),
        (case.rings_at, rings(case, {"release": "attached"})),
    ]
    check(tmp_path, PLAIN.read_text(), promtool_tests([case], lambda _: both, lambda _: expected))


def test_a_release_rings_for_its_own_trouble_beside_another_one(tmp_path: Path) -> None:
    """Once, with its own labels, whether the other one works well or has the same trouble."""
    tests = promtool_tests(
        CASES,
        lambda case: labelled(case.series, OWN) + labelled(case.healthy or case.series, BESIDE),
        lambda case: [(case.quiet_at, []), (case.rings_at, rings(case, OWN))],
    )
    check(tmp_path, chart_rules(), tests)


def test_a_release_is_quiet_when_another_one_is_in_trouble(tmp_path: Path) -> None:
    tests = promtool_tests(
        [case for case in CASES if case.healthy or case.alert not in NEEDS_ITS_OWN],
        lambda case: labelled(case.healthy, OWN) + labelled(case.series, BESIDE),
        lambda case: [(case.rings_at, [])],
    )
    check(tmp_path, chart_rules(), tests)


def test_every_selector_of_the_chart_is_for_its_own_release() -> None:
    found = re.findall(r"\b(?:kshare_[a-z0-9_]+|up|process_[a-z_]+)(\{[^}]*|\b)", expressions(chart_rules()))
    assert len(found) > 40
    assert all(text.startswith('{namespace="n",release="queues"') for text in found), found


def expressions(rules: str) -> str:
    return "\n".join(re.findall(r"expr: \|-\n(.*?)\n +for:", rules, re.DOTALL))


def test_a_role_that_no_sample_is_of_rings(tmp_path: Path) -> None:
    """Nothing of the release was ever scraped, and there is one expectation for each role that it has."""
    roles = ["coordinator", "gateway", "leader", "pipeline", "share-coordinator"]
    down = [
        {
            "exp_labels": {**OWN, "component": role, "severity": "critical"},
            "exp_annotations": {
                "summary": f"No pod of the role {role} answers",
                "runbook_url": writer.runbook_url("KshareRoleDown"),
            },
        }
        for role in roles
    ]
    one = next(case for case in CASES if case.alert == "KshareRoleDown")
    tests = promtool_tests([one], lambda case: labelled(case.healthy, BESIDE), lambda case: [(15, down)])
    check(tmp_path, chart_rules("pipeline.enabled=true"), tests)


def test_values_change_thresholds_durations_and_which_alerts_there_are(tmp_path: Path) -> None:
    alerts = "metrics.prometheusRule.alerts"
    rules = chart_rules(
        f"{alerts}.KshareGroupLagGrows.records=2500000",
        f"{alerts}.KshareGroupLagGrows.for=2h",
        f"{alerts}.KshareGroupLagGrows.severity=page",
        f"{alerts}.KshareDiskFills.hours=48",
        f"{alerts}.KshareEventLoopLag.enabled=false",
        f"{alerts}.KshareGroupStandsStill.exceptGroups={{paused.orders,o|d}}",
        "metrics.prometheusRule.runbookUrl=https://wiki.example.com/kshare",
        "autoscaling.gateway.enabled=true",
        "autoscaling.gateway.minReplicas=4",
        "leader.replicas=7",
    )
    assert re.search(r"> 2500000\n.*\n +for: 2h\n +labels:\n +severity: page\n", rules)
    assert "[6h], 48 * 3600) < 0" in rules
    assert "KshareEventLoopLag" not in rules
    assert 'runbook_url: "https://wiki.example.com/kshare#ksharegroupstandsstill"' in rules
    assert re.search(r'component="gateway"} == 1\) or vector\(0\)\) < 4$', rules, re.MULTILINE)
    assert re.search(r'component="leader"} == 1\) or vector\(0\)\) < 7$', rules, re.MULTILINE)
    still = next(case for case in CASES if case.alert == "KshareGroupStandsStill")
    series = {
        name.replace('group="g"', f'group="{group}"'): values
        for group in ("paused.orders", "pausedXorders")
        for name, values in still.series.items()
        if 'group="g"' in name
    }
    ringing = still._replace(
        labels={"group": "pausedXorders"}, summary=still.summary.replace("g ", "pausedXorders ", 1)
    )
    expected = rings(ringing, OWN)
    expected[0]["exp_annotations"] = {
        "summary": ringing.summary,
        "runbook_url": "https://wiki.example.com/kshare#ksharegroupstandsstill",
    }
    tests = promtool_tests([still], lambda case: labelled(series, OWN), lambda case: [(case.rings_at, expected)])
    check(tmp_path, rules, tests)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("alerts.KshareNoSuchAlert.enabled=false", "KshareNoSuchAlert"),
        ("alerts.KshareGroupLagGrows.seconds=5", "seconds"),
        ("alerts.KshareGroupLagGrows.for=long", "pattern"),
        ("alerts.KshareDiskNearlyFull.ratio=10", "maximum"),
        ("runbookUrl=docs", "pattern"),
    ],
)
def test_a_value_without_an_effect_is_refused(value: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        chart_rules(f"metrics.prometheusRule.{value}")
