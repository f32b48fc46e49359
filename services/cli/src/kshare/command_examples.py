"""Examples at the end of each command's `--help`; tests check that each exists with its options.

They use a topic `orders` and a share group `billing`, as the README does.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "kshare up --data-dir data",
        "kshare up --data-dir data --listen 127.0.0.1:9092 --config server.properties",
        "kshare up --data-dir data --console 127.0.0.1:8080",
    ),
    "attach": (
        "kshare attach broker:9092 --check",
        "kshare attach broker:9092 --listen 127.0.0.1:19092",
    ),
    "demo": ("kshare demo --orders 2000",),
    "metrics": ("kshare metrics --describe",),
    "profiles": ("kshare profiles", "kshare profiles --output json"),
    "nodes": ("kshare nodes", "kshare nodes --watch"),
    "produce": (
        'kshare produce orders "first order" --key customer-7 --header source=shop',
        "kshare produce orders --file order.xml",
        "kshare peek orders --output json | kshare produce orders.copy --input json",
    ),
    "consume": (
        "kshare consume orders --group billing --from-beginning --max 10",
        "kshare consume orders --group billing --release",
        "kshare consume orders --group billing --output json --timeout 5",
    ),
    "peek": ("kshare peek orders --max 5", "kshare peek orders --group billing --output json"),
    "top": ("kshare top", "kshare top --interval 5 --rows 10"),
    "doctor": ("kshare doctor", "kshare doctor --data-dir data --output json"),
    "client-config": (
        "kshare client-config python --topic orders --group billing",
        "kshare client-config java --command-config client.properties",
    ),
    "audit": ("kshare audit --bootstrap localhost:9092",),
    "redrive": ("kshare redrive dlq.billing --dry-run", "kshare redrive dlq.billing --reason rejected --rate 100"),
    "report": ("kshare report --data-dir history --output report.html",),
    "migrate": ("kshare migrate --from OLD:9092 --to BROKER:9092 --dry-run",),
    "detach": ("kshare detach --from HOST:19092 --to BROKER:9092 --group billing --dry-run",),
    "backup": ("kshare backup backups/monday --data-dir data",),
    "restore": (
        "kshare restore backups/monday --data-dir data-2 --dry-run",
        "kshare restore backups/monday --data-dir data --only leader-2",
    ),
    "topics create": (
        "kshare topics create orders --partitions 3",
        "kshare topics create dlq.billing --config errors.deadletterqueue.group.enable=true",
    ),
    "topics list": ("kshare topics list", "kshare topics list --output json"),
    "topics describe": ("kshare topics describe orders", "kshare topics describe orders --watch --interval 5"),
    "topics delete": ("kshare topics delete orders",),
    "groups list": ("kshare groups list", "kshare groups list --watch"),
    "groups describe": ("kshare groups describe billing", "kshare groups describe billing --output json"),
    "groups in-flight": ("kshare groups in-flight billing --held",),
    "groups release": ("kshare groups release billing --topic orders --partition 0 --offsets 17-20 --dry-run",),
    "groups reject": ("kshare groups reject billing --topic orders --partition 0 --offsets 17 --yes",),
    "groups set": (
        "kshare groups set billing share.auto.offset.reset=earliest",
        "kshare groups set billing --unset share.delivery.count.limit",
    ),
    "groups reset": (
        "kshare groups reset billing --topic orders --to-earliest --dry-run",
        "kshare groups reset billing --all-topics --to-datetime 2026-11-21T18:00:00",
    ),
    "groups delete": ("kshare groups delete billing",),
    "brokers configs": ("kshare brokers configs",),
    "brokers set": (
        "kshare brokers set log.retention.ms=86400000 message.max.bytes=2000000",
        "kshare brokers set --unset log.retention.ms",
    ),
    "partitions list": ("kshare partitions list", "kshare partitions list orders --watch"),
    "partitions move": ("kshare partitions move orders:0,orders:1 --to 2 --wait",),
    "partitions rebalance": ("kshare partitions rebalance --dry-run", "kshare partitions rebalance --wait"),
    "partitions drain": ("kshare partitions drain 2", "kshare partitions drain 2 --undo"),
    "partitions give-up": ("kshare partitions give-up 2",),
    "state partitions": ("kshare state partitions",),
    "state drain": ("kshare state drain 2",),
    "state give-up": ("kshare state give-up 2",),
    "state dump": ("kshare state dump billing --topic orders",),
    "state backup": ("kshare state backup before-upgrade --data-dir data",),
    "state verify": ("kshare state verify --data-dir data/backups/before-upgrade",),
    "state export": ("kshare state export --data-dir data --output state.json",),
    "state import": ("kshare state import state.json --data-dir data",),
}
"""By the command's words."""


def epilog_of(words: str) -> str | None:
    """The examples as Typer wants them: blank lines become line breaks, and brackets would be markup."""
    examples = EXAMPLES.get(words)
    if examples is None:
        return None
    return "\n\n".join(["Examples:", *(f"  {example}" for example in examples)])
