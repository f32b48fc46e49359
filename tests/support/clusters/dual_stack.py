"""IPv6 beside IPv4 for the node of ../shared/kubernetes, whose script knows IPv4 only: a copy with more addresses.

Pods, Services and the node have an address of either family; IPv4 is the primary one. The addresses are private
(fd00::/8), and the machine finds them as it finds those of IPv4.
"""

from __future__ import annotations

from pathlib import Path

NODE = "fd00:250::2"
MACHINE = "fd00:250::1"
PODS = "fd00:244::/64"
SERVICES = "fd00:96::/112"
ADDITIONS = (
    # of the network plugin
    ('"ranges":[[{"subnet":"10.244.0.0/24"}]]', f'"ranges":[[{{"subnet":"10.244.0.0/24"}}],[{{"subnet":"{PODS}"}}]]'),
    ('"routes":[{"dst":"0.0.0.0/0"}]', '"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]'),
    # of kube-proxy, the API server and the kubelet
    ("clusterCIDR: 10.244.0.0/16", f"clusterCIDR: 10.244.0.0/16,{PODS}"),
    ("--service-cluster-ip-range=10.96.0.0/16", f"--service-cluster-ip-range=10.96.0.0/16,{SERVICES}"),
    ("--node-ip=$N.2", f"--node-ip=$N.2,{NODE}"),
    # of the node and of the machine
    ("sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"),
    (
        "ip addr add $N.2/30 dev k8sn;",
        f"ip addr add $N.2/30 dev k8sn; ip addr add {NODE}/64 dev k8sn nodad; ip -6 route add default via {MACHINE};",
    ),
    (
        "ip addr add $N.1/30 dev k8sh; ip link set k8sh up",
        f"ip addr add $N.1/30 dev k8sh; ip addr add {MACHINE}/64 dev k8sh nodad; ip link set k8sh up",
    ),
    (
        "ip route add 10.96.0.0/16 via $N.2",
        f"ip route add 10.96.0.0/16 via $N.2; ip route add {PODS} via {NODE}; ip route add {SERVICES} via {NODE}",
    ),
)


def write_dual_stack(script: Path, to: Path) -> Path:
    """The script with both families; AssertionError where it has changed."""
    text = script.read_text()
    for found, with_both in ADDITIONS:
        assert text.count(found) == 1, f"{script} has {found!r} {text.count(found)} times"
        text = text.replace(found, with_both)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)
    to.chmod(0o755)
    return to
