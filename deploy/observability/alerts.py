"""Writes the alert rules, and their values in the chart: `python deploy/observability/alerts.py`.

One table (`alert_table.py`) is the source of
- helm/kshare/files/alerts.yaml, with placeholders, which the chart's PrometheusRule fills in for its release;
- deploy/observability/alerts.yaml, for a Prometheus without the chart, as that of docker-compose.yml;
- the thresholds in the chart's values.yaml and their types in values.schema.json.

tests/deploy/test_alerts.py compares the files with what this writes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from alert_table import ALERTS, RULE_GROUPS, Alert

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/kshare"
RUNBOOK_URL = "https://github.com/kshare/kshare/blob/main/docs/runbook.md"
FIRST_LINE = "    # The alerts; deploy/observability/alerts.py writes these lines."
LAST_LINE = "    # End of the alerts."

Json = Mapping[str, object]

CHART_HEADER = """\
# Alerts of the chart's PrometheusRule, which fills in the placeholders. Written by deploy/observability/alerts.py.
"""
PLAIN_HEADER = """\
# Alert rules for a Prometheus that scrapes kshare in a job of this name; each of several clusters has a label release.
# Written by deploy/observability/alerts.py
# The chart has the same alerts for each release, with thresholds in its values; docs/runbook.md says what to do.
"""


def chart_rules() -> str:
    """The rules with placeholders."""
    lines = [CHART_HEADER + "groups:"]
    for group, alerts in RULE_GROUPS.items():
        lines += [f"  - name: {group}", "    rules:"]
        for alert in alerts:
            lines.append(f"      - alert: {alert.name}")
            if alert.is_of_a_role:
                lines.append("        isOfARole: true")
            lines += ["        expr: |-", *_indented(alert.expression)]
            lines.append(f"        summary: {json.dumps(alert.summary)}")
    return "\n".join(lines) + "\n"


def plain_rules() -> str:
    """The rules for one cluster, with the default thresholds."""
    lines = [PLAIN_HEADER + "groups:"]
    for group, alerts in RULE_GROUPS.items():
        lines += [f"  - name: {group}", "    rules:"]
        for alert in alerts:
            if alert.is_of_a_role:
                continue
            lines += [f"      - alert: {alert.name}", "        expr: |-", *_indented(plain_expression(alert))]
            lines += [f"        for: {alert.waits_for}", f"        labels: {{severity: {alert.severity}}}"]
            lines += ["        annotations:", f"          summary: {json.dumps(alert.summary)}"]
            lines.append(f"          runbook_url: {runbook_url(alert.name)}")
    return "\n".join(lines) + "\n"


def plain_expression(alert: Alert) -> str:
    """The expression over one cluster: metrics of other programs, such as `up`, are of the job kshare."""
    text = alert.expression.replace("${groups}", "")
    text = re.sub(r"\b(up|process_\w+)\{\$\{scope\}", r'\1{job="kshare"', text)
    text = text.replace("{${scope},", "{").replace("{${scope}}", "")
    for name, value in alert.thresholds.items():
        text = text.replace(f"${{{name}}}", f"{value:g}")
    return text


def runbook_url(name: str) -> str:
    return f"{RUNBOOK_URL}#{name.lower()}"


def _indented(text: str) -> Iterator[str]:
    return (f"          {line}" for line in text.splitlines())


def values_text(text: str) -> str:
    """The chart's values.yaml with the alerts of the table."""
    before, _, rest = text.partition(FIRST_LINE + "\n")
    _, found, after = rest.partition(LAST_LINE + "\n")
    assert found, f"values.yaml has no lines {FIRST_LINE!r} and {LAST_LINE!r}"
    lines = [FIRST_LINE, "    alerts:"]
    for alert in ALERTS:
        set_to = ["enabled: true", f"severity: {alert.severity}", f"for: {alert.waits_for}"]
        set_to += [f"{name}: {value:g}" for name, value in alert.thresholds.items()]
        set_to += ["exceptGroups: []"] if alert.excepts_groups else []
        lines.append(f"      {alert.name}: {{{', '.join(set_to)}}}")
    return before + "\n".join([*lines, LAST_LINE]) + "\n" + after


def schema_text(text: str) -> str:
    """The chart's values.schema.json with the alerts of the table."""
    schema = json.loads(text)
    rule = schema["properties"]["metrics"]["properties"]["prometheusRule"]
    rule["properties"]["alerts"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {alert.name: _schema_of(alert) for alert in ALERTS},
    }
    return json.dumps(schema, indent=2) + "\n"


def _schema_of(alert: Alert) -> Json:
    properties: dict[str, Json] = {
        "enabled": {"type": "boolean"},
        "severity": {"type": "string", "pattern": "^[a-z][a-z0-9_-]*$"},
        "for": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"},
    }
    for name in alert.thresholds:
        properties[name] = {"type": "number", "minimum": 0, **({"maximum": 1} if name == "ratio" else {})}
    if alert.excepts_groups:
        properties["exceptGroups"] = {"type": "array", "items": {"type": "string", "minLength": 1}}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def written_files() -> Mapping[Path, str]:
    """All files with their texts."""
    values, schema = CHART / "values.yaml", CHART / "values.schema.json"
    return {
        CHART / "files/alerts.yaml": chart_rules(),
        ROOT / "deploy/observability/alerts.yaml": plain_rules(),
        values: values_text(values.read_text(encoding="utf-8")),
        schema: schema_text(schema.read_text(encoding="utf-8")),
    }


def main() -> int:
    for path, text in written_files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
