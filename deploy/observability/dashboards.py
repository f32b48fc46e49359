"""Writes the Grafana dashboards of helm/kshare/files/dashboards: `python deploy/observability/dashboards.py`.

tests/deploy/test_observability.py compares the files with what this writes, and asks a real Prometheus every query.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dashboard_model import Dashboard, Panel, Variable
from dashboard_tables import DASHBOARDS

FOLDER = Path(__file__).resolve().parents[2] / "helm/kshare/files/dashboards"
COLUMNS = 24
STAT_SIZE, GRAPH_SIZE = (6, 4), (8, 7)
"""Widths and heights."""
SOURCE = {"type": "prometheus", "uid": "${source}"}

Json = dict[str, object]


def rendered(name: str, dashboard: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    document: Json = {
        "uid": f"kshare-{name}",
        "title": dashboard.title,
        "tags": ["kshare"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *map(_variable, dashboard.variables)]},
        "links": [
            {"type": "dashboards", "title": "kshare", "tags": ["kshare"], "asDropdown": True, "includeVars": True}
        ],
        "panels": list(_panels(dashboard.panels)),
    }
    return json.dumps(document, indent=2) + "\n"


def _variable(variable: Variable) -> Json:
    selection = f"{{{variable.selection}}}" if variable.selection else ""
    return {
        "name": variable.name,
        "label": variable.name,
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values({variable.metric}{selection}, {variable.name})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(panels: Sequence[Panel]) -> Iterator[Json]:
    """Stats in rows at the top, graphs below."""
    stats = [panel for panel in panels if panel.is_stat]
    graphs = [panel for panel in panels if not panel.is_stat]
    top, number = 0, 0
    for part, (width, height) in ((stats, STAT_SIZE), (graphs, GRAPH_SIZE)):
        per_row = COLUMNS // width
        for index, panel in enumerate(part):
            number += 1
            place = {"x": index % per_row * width, "y": top + index // per_row * height, "w": width, "h": height}
            yield _panel(number, panel, place)
        top += -(-len(part) // per_row) * height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> Json:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "expr": query.expression,
            "legendFormat": query.legend,
            "datasource": SOURCE,
            **({"exemplar": True} if panel.has_exemplars and query is panel.queries[-1] else {}),
        }
        for index, query in enumerate(panel.queries)
    ]
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.is_stat:
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
    found: Json = {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }
    if panel.is_stat:
        found["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area", "colorMode": "value"}
    return found


def _steps(panel: Panel) -> list[Json]:
    if panel.bad_from is None:
        return [{"color": "text", "value": None}]
    good, bad = ("red", "green") if panel.is_bad_below else ("green", "red")
    return [{"color": good, "value": None}, {"color": bad, "value": panel.bad_from}]


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(rendered(name, dashboard), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
