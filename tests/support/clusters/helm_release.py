"""A release of the chart on a Kubernetes, with values that a test changes between upgrades."""

from __future__ import annotations

import copy
import json
import re
import urllib.request
from typing import Any

from support.clients.delivery import wait_for
from support.clusters.kubernetes import CHART, RELEASE, Kubernetes


class Release:
    """`name` is the release's; its objects have the chart's name, or nameOverride, after it."""

    def __init__(self, cluster: Kubernetes, name: str = RELEASE, chart_name: str = "kshare") -> None:
        self.cluster = cluster
        self.name = name
        self.fullname = f"{name}-{chart_name}"
        self.values: dict[str, Any] = copy.deepcopy(cluster.values)
        if chart_name != "kshare":
            self.values["nameOverride"] = chart_name

    def helm(self, command: str, *arguments: str) -> None:
        """`install` or `upgrade`; returns when all pods are ready."""
        given = json.dumps(self.values)
        try:
            self.cluster.helm(
                *(command, self.name, str(CHART), *arguments, "--values", "-", "--wait", "--timeout", "240s"),
                given=given,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.describe_trouble()}") from None

    def uninstall(self) -> None:
        """Returns when no pod is left. A StatefulSet that is made while pods of its name still end may stay without."""
        self.cluster.helm("uninstall", self.name, "--wait", "--timeout", "180s")
        wait_for(lambda: not self._items("pods"), "all pods are gone", timeout_s=120)

    def delete_volumes(self) -> None:
        self.cluster.kubectl("delete", "persistentvolumeclaims", "--selector", self._selector())

    def pods(self, role: str) -> dict[str, str]:
        """The uids of a role's pods, by name."""
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in self._items("pods", role)}

    def all_pods(self) -> dict[str, str]:
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in self._items("pods")}

    def addresses(self, role: str) -> list[str]:
        """Of a role's pods, but not of those that end."""
        lasting = [item for item in self._items("pods", role) if "deletionTimestamp" not in item["metadata"]]
        return [item["status"]["podIP"] for item in lasting]

    def figures(self, role: str, metric: str) -> list[float]:
        """What each pod of a role says of a metric; the sum where it has several series."""
        found = []
        for address in self.addresses(role):
            with urllib.request.urlopen(f"http://{address}:9464/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            found.append(sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{metric}[ {{]", line)))
        return found

    def claims(self) -> set[str]:
        """The roles that have claims."""
        items = self._items("persistentvolumeclaims")
        return {item["metadata"]["labels"]["app.kubernetes.io/component"] for item in items}

    def _items(self, kind: str, role: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cluster.get(kind, "--selector", self._selector(role))["items"]
        return found

    def _selector(self, role: str | None = None) -> str:
        of_role = f",app.kubernetes.io/component={role}" if role else ""
        return f"app.kubernetes.io/instance={self.name}{of_role}"
