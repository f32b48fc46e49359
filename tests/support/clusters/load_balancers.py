"""A cloud's part for Services of type LoadBalancer: a controller that gives them addresses, which lead to the node.

kube-proxy does the rest, as behind a cloud's load balancer that passes packets on: it takes connections to the address
from a Service's status, lets in its source ranges only, and spreads them over pods.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from support.clusters.kubernetes import OWN_NODE, Kubernetes, run
from support.environment.unavailable import unavailable

NETWORK = "10.250.1.0/24"
"""Of the addresses; only this machine knows the way to it."""
LOOKS_EVERY_S = 0.5


@contextmanager
def load_balancers(cluster: Kubernetes, addresses: Mapping[str, str]) -> Iterator[None]:
    """Gives each Service its address, by name, whenever it has none."""
    if cluster.node != OWN_NODE:
        unavailable("addresses of load balancers lead to the node of ../shared/kubernetes only")
    run("ip", "route", "replace", NETWORK, "via", OWN_NODE, environment=cluster.environment)
    stop = threading.Event()

    def give() -> None:
        while not stop.wait(LOOKS_EVERY_S):
            for service in cluster.get("services")["items"]:
                name = service["metadata"]["name"]
                if service["spec"]["type"] == "LoadBalancer" and not service["status"]["loadBalancer"]:
                    status = {"loadBalancer": {"ingress": [{"ip": addresses[name], "ipMode": "VIP"}]}}
                    patch = ("--subresource", "status", "--type", "merge", "--patch", json.dumps({"status": status}))
                    cluster.kubectl("patch", "service", name, *patch)

    controller = threading.Thread(target=give)
    controller.start()
    try:
        yield
    finally:
        stop.set()
        controller.join()
        run("ip", "route", "del", NETWORK, environment=cluster.environment)
