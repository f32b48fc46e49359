"""Broker configs of connections, requests, nodes, the controller and metrics, as in Apache Kafka 4.3.1.

A row with a text has an effect here; the others are accepted and ignored.
"""

from __future__ import annotations

from kshare_core.configs.connection_limits import overrides_problem
from kshare_core.configs.definition import ConfigDefinition
from kshare_core.configs.rows import MAX_INT, MAX_LONG, boolean, class_name, integer, listing, long, string

BROKER_CLUSTER: tuple[ConfigDefinition, ...] = (
    listing(
        "advertised.listeners",
        None,
        text="Addresses in metadata responses, as NAME://HOST:PORT for each listener; default: `listeners`.",
    ),
    class_name("alter.config.policy.class.name", None),
    integer("broker.heartbeat.interval.ms", 2000),
    integer("broker.id", -1),
    string("broker.rack", None, text="The rack of a gateway in metadata responses."),
    integer("broker.session.timeout.ms", 9000),
    class_name("client.quota.callback.class", None),
    listing("config.providers", (), dynamic=True),
    long("connections.max.idle.ms", 600000, text="Idle time after which a connection is closed."),
    boolean("controlled.shutdown.enable", True),
    listing(
        "controller.listener.names",
        None,
        text="The listeners of Kafka's controllers, which a gateway does not open.",
    ),
    long("controller.performance.always.log.threshold.ms", 2000, low=0, internal=True),
    long("controller.performance.sample.period.ms", 60000, low=100, internal=True),
    integer("controller.quorum.append.linger.ms", 25, low=0),
    boolean("controller.quorum.auto.join.enable", False),
    listing("controller.quorum.bootstrap.servers", ()),
    integer("controller.quorum.election.backoff.max.ms", 1000, low=0),
    integer("controller.quorum.election.timeout.ms", 1000, low=0),
    integer("controller.quorum.fetch.max.bytes", 1048576, low=1),
    integer("controller.quorum.fetch.snapshot.max.bytes", 1048576, low=1),
    integer("controller.quorum.fetch.timeout.ms", 2000, low=0),
    integer("controller.quorum.request.timeout.ms", 2000, low=0),
    integer("controller.quorum.retry.backoff.ms", 20, low=0),
    listing("controller.quorum.voters", ()),
    integer(
        "controller.quota.window.num",
        11,
        low=1,
        text="Windows of controller_mutation_rate: a client may make the changes of so many at once.",
    ),
    integer(
        "controller.quota.window.size.seconds", 1, low=1, text="The length of a window of controller_mutation_rate."
    ),
    integer("controller.socket.timeout.ms", 30000),
    listing("early.start.listeners", None),
    integer(
        "fetch.max.bytes",
        57671680,
        low=1024,
        text="Upper limit of record bytes in the response to a fetch or share fetch.",
    ),
    integer("initial.broker.registration.timeout.ms", 60000),
    string("inter.broker.listener.name", None),
    long("internal.metadata.delete.delay.millis", 60000, internal=True),
    integer("internal.metadata.log.segment.bytes", None, internal=True),
    integer("internal.metadata.max.batch.size.in.bytes", 8388608, internal=True),
    integer("kafka.metrics.polling.interval.secs", 10, low=1),
    listing("kafka.metrics.reporters", ()),
    string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        dynamic=True,
        text="The security protocol of each listener name: PLAINTEXT or SSL. Read when a gateway starts.",
    ),
    listing(
        "listeners",
        ("PLAINTEXT://:9092",),
        dynamic=True,
        text="Listen addresses for clients, as NAME://HOST:PORT; default: --listen or --client-listen. Read when a "
        "gateway starts.",
    ),
    integer("max.connection.creation.rate", MAX_INT, low=0, dynamic=True),
    integer(
        "max.connections",
        MAX_INT,
        low=0,
        text="Maximum client connections of a gateway, or with the prefix of a listener of this one; further ones are "
        "closed.",
        dynamic=True,
    ),
    integer(
        "max.connections.per.ip",
        MAX_INT,
        low=0,
        text="Maximum client connections of a gateway from one address; further ones are closed.",
        dynamic=True,
    ),
    string(
        "max.connections.per.ip.overrides",
        "",
        check=overrides_problem,
        text="Limits of client connections from some addresses or host names, as HOST:COUNT,HOST:COUNT.",
        dynamic=True,
    ),
    integer("max.incremental.fetch.session.cache.slots", 1000, low=0),
    integer(
        "max.request.partition.size.limit",
        2000,
        low=1,
        text="Maximum partitions in a response to DescribeTopicPartitions.",
    ),
    string("metadata.log.dir", None),
    long("metadata.log.max.record.bytes.between.snapshots", 20971520, low=1),
    long("metadata.log.max.snapshot.interval.ms", 3600000, low=0),
    integer("metadata.log.segment.bytes", 1073741824, low=8388608),
    long("metadata.log.segment.ms", 604800000),
    integer("metadata.max.idle.interval.ms", 500, low=0),
    long("metadata.max.retention.bytes", 104857600),
    long("metadata.max.retention.ms", 604800000),
    listing("metric.reporters", ("org.apache.kafka.common.metrics.JmxReporter",), dynamic=True),
    integer("metrics.num.samples", 2, low=1),
    string("metrics.recording.level", "INFO"),
    long("metrics.sample.window.ms", 30000, low=1),
    integer("node.id", None, low=0),
    integer("num.io.threads", 8, low=1, dynamic=True),
    integer("num.network.threads", 3, low=1, dynamic=True),
    listing("process.roles", None, choices=("broker", "controller")),
    long(
        "queued.max.request.bytes",
        -1,
        text="Bytes of requests, half-received ones too, that a gateway holds; beyond it the connections that hold "
        "most are not read. 0 or less: only kshare.queued.max.bytes limits them.",
    ),
    integer("queued.max.requests", 500, low=1),
    integer(
        "quota.window.num",
        11,
        low=1,
        text="Client quotas let a client use the rate of so many windows, less one, at once.",
    ),
    integer(
        "quota.window.size.seconds",
        1,
        low=1,
        text="The length of such a window; a request is throttled for no longer because of its time.",
    ),
    integer(
        "request.timeout.ms",
        30000,
        text="Maximum wait of a leader for the transaction coordinator's response.",
    ),
    long("server.max.startup.time.ms", MAX_LONG, low=0, internal=True),
    long("socket.connection.setup.timeout.max.ms", 30000),
    long("socket.connection.setup.timeout.ms", 10000),
    integer("socket.listen.backlog.size", 50, low=1),
    integer("socket.receive.buffer.bytes", 102400),
    integer(
        "socket.request.max.bytes",
        104857600,
        low=1,
        text="Maximum size of a request; a larger one closes the connection.",
    ),
    integer("socket.send.buffer.bytes", 102400),
    integer("telemetry.max.bytes", 1048576, low=1),
    boolean("unstable.api.versions.enable", False, internal=True),
    boolean("unstable.feature.versions.enable", False, internal=True),
)
