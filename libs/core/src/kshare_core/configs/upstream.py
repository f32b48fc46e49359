"""Configs of the connection to an existing cluster: `kshare.upstream.` and a name of Kafka's clients."""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition, ConfigTable
from kshare_core.configs.rows import MAX_INT, MAX_LONG, integer, listing, long, password, string

PREFIX = "kshare.upstream."
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_ROWS: tuple[ConfigDefinition, ...] = (
    listing(
        "kshare.upstream.bootstrap.servers",
        (),
        text="The brokers' addresses, host:port each; any of them may fail. Needed with kshare.engine=kafka.",
    ),
    string(
        "kshare.upstream.mode",
        "share",
        choices=("share", "proxy"),
        text="With kshare.engine=kafka, what clients use kshare for: share groups only, or the whole cluster.",
    ),
    integer(
        "kshare.upstream.topics.refresh.interval.ms",
        1_000,
        low=100,
        high=MAX_INT,
        text="How often the active coordinator asks for the topics that share groups use.",
    ),
    string(
        "kshare.upstream.proxy.port.range",
        "",
        text="With kshare.upstream.mode=proxy, the ports FROM-TO of gateways, one for each broker of the cluster and "
        "each listener: that at the broker's id modulo their number. Needed where several gateways are behind one "
        "address. Empty: the next free ports after the listener's own, or any free ones where that is 0.",
    ),
    integer(
        "kshare.upstream.authorization.cache.ms",
        30_000,
        low=0,
        high=MAX_INT,
        text="How long a gateway remembers what the cluster lets a client do; a change has an effect after this time.",
    ),
    string(
        "kshare.upstream.client.id",
        "kshare",
        text="The client id of kshare's own requests, for the cluster's logs and quotas.",
    ),
    string(
        "kshare.upstream.topic.prefix",
        "__kshare_",
        text="The prefix of the topics that kshare makes; two kshares on one cluster need different ones.",
    ),
    integer(
        "kshare.upstream.topic.replication.factor",
        3,
        low=1,
        high=100,
        text="The replicas of those topics when they are made. If it is set, they are not made while brokers are "
        "missing. If it is not set, they get at most three, and no more than brokers are alive.",
    ),
    integer(
        "kshare.upstream.request.timeout.ms",
        30_000,
        low=100,
        high=MAX_INT,
        text="How long a response of a broker is awaited.",
    ),
    long(
        "kshare.upstream.window.bytes",
        256 * 1024 * 1024,
        low=1024 * 1024,
        high=MAX_LONG,
        text="Record bytes of all partitions that a leader has in memory with kshare.engine=kafka. Not set: "
        "derived from kshare.memory.budget.",
    ),
    long(
        "kshare.upstream.partition.window.bytes",
        16 * 1024 * 1024,
        low=64 * 1024,
        high=MAX_LONG,
        text="Record bytes of one partition that a leader has in memory for each isolation level; half of them are "
        "fetched ahead. Not set: a quarter of kshare.upstream.window.bytes, at most 16 MiB.",
    ),
    string(
        "kshare.upstream.security.protocol",
        "PLAINTEXT",
        choices=SECURITY_PROTOCOLS,
        text="The protocol of the brokers' listener.",
    ),
    string(
        "kshare.upstream.sasl.mechanism",
        "PLAIN",
        choices=MECHANISMS,
        text="The SASL mechanism, with a security protocol that has SASL.",
    ),
    password(
        "kshare.upstream.sasl.jaas.config",
        "",
        text='The user: CLASS required username="…" password="…"; with PlainLoginModule or ScramLoginModule as CLASS.',
    ),
    string(
        "kshare.upstream.ssl.truststore.location",
        "",
        text="A file with the authorities that sign the brokers' certificates; empty: those of the system.",
    ),
    string("kshare.upstream.ssl.truststore.type", "PEM", text="PEM or PKCS12."),
    password("kshare.upstream.ssl.truststore.password", "", text="Password of a PKCS12 truststore."),
    string(
        "kshare.upstream.ssl.keystore.location",
        "",
        text="A file with the key and the certificate that kshare shows to the brokers; empty: it shows none.",
    ),
    string("kshare.upstream.ssl.keystore.type", "PEM", text="PEM or PKCS12."),
    password("kshare.upstream.ssl.keystore.password", "", text="Password of a PKCS12 keystore."),
    password("kshare.upstream.ssl.key.password", "", text="Password of an encrypted private key in PEM."),
    string(
        "kshare.upstream.ssl.endpoint.identification.algorithm",
        "https",
        choices=("https", ""),
        text="https: a broker's certificate must contain its host; empty: any certificate of the truststore will do.",
    ),
)

UPSTREAM_CONFIGS: ConfigTable = {definition.name: definition for definition in _ROWS}
