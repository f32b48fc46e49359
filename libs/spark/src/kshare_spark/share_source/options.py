"""The read options of `format("kshare")`: names as in Spark's Kafka source, `kafka.…` for the client.

| option | default | meaning |
|---|---|---|
| kafka.bootstrap.servers | required | host:port,host:port |
| subscribe | required | topics, separated by commas |
| group.id (or kafka.group.id) | required | the share group |
| maxRecordsPerTrigger | as many as the group's locks allow | the most records of one batch, exactly |
| maxBytesPerTrigger | none | a batch ends with the fetch that reaches it; compressed bytes |
| numPartitions | one for each topic partition with records | Spark tasks of a batch |
| includeHeaders | false | adds the column headers |
| failOnDataLoss | true | a batch whose records are no longer in the log fails; false: reads the remaining ones |
| acknowledge | never | of `spark.read` only: never (records are released when read) or onRead |
| kafka.… | | `CLIENT_PROPERTIES`, with the names and meanings of Kafka's and librdkafka's clients |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

READ_OPTIONS = (
    "subscribe",
    "group.id",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "numPartitions",
    "includeHeaders",
    "failOnDataLoss",
    "acknowledge",
)
INTERNAL_OPTIONS = ("acquired", "path")
"""`acquired` is set by `taking`; `path` by Spark's load()."""
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ACKNOWLEDGE_NEVER, ACKNOWLEDGE_ON_READ = "never", "onread"
CLIENT_PROPERTIES = (
    "bootstrap.servers",
    "group.id",
    "client.id",
    "client.rack",
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "fetch.max.wait.ms",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
)
NOT_OURS = {
    "auto.offset.reset": "a share group has the group config share.auto.offset.reset",
    "enable.auto.commit": "records are accepted when Spark has committed the batch",
    "key.deserializer": "key and value are binary columns; cast them in the query",
    "value.deserializer": "key and value are binary columns; cast them in the query",
    "isolation.level": "a share group has the group config share.isolation.level",
    "share.acknowledgement.mode": "records are accepted when Spark has committed the batch",
    "max.poll.records": "use maxRecordsPerTrigger",
}
_ADDRESS = re.compile(r"^\s*(?:\[([^\]]+)\]|([^:\s]+)):(\d{1,5})\s*$")
_JAAS_USER = re.compile(r"""username\s*=\s*["']([^"']*)["']""")
_JAAS_PASSWORD = re.compile(r"""password\s*=\s*["']([^"']*)["']""")


class InvalidOption(ValueError):
    """An option is missing, unknown or has a value that is not allowed; the text says which, and what is allowed."""


@dataclass(frozen=True)
class ClientProperties:
    """Addresses and credentials for the brokers; the repr has no password."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = "kshare-spark"
    rack: str | None = None
    tls: bool = False
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_host_name: bool = True
    sasl_mechanism: str | None = None
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 * 1024 * 1024
    partition_fetch_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read; picklable for executors."""

    client: ClientProperties
    topics: tuple[str, ...]
    group_id: str
    max_records: int | None = None
    max_bytes: int | None = None
    partitions: int | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True
    accept_on_read: bool = False


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The parsed options of a read or readStream; InvalidOption."""
    options = {name.lower(): value.strip() for name, value in given.items() if value is not None}
    _refuse_unknown(options)
    properties = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    topics = tuple(dict.fromkeys(topic.strip() for topic in _required(options, "subscribe").split(",")))
    if not all(topics):
        _invalid("subscribe", options["subscribe"], "topic names separated by commas")
    acknowledge = options.get("acknowledge", ACKNOWLEDGE_NEVER).lower()
    if acknowledge not in (ACKNOWLEDGE_NEVER, ACKNOWLEDGE_ON_READ):
        _invalid("acknowledge", options["acknowledge"], "never, onRead")
    return ReadOptions(
        client=client_properties(properties),
        topics=topics,
        group_id=_group_id(options),
        max_records=_positive(options, "maxRecordsPerTrigger"),
        max_bytes=_positive(options, "maxBytesPerTrigger"),
        partitions=_positive(options, "numPartitions"),
        include_headers=_flag(options, "includeHeaders", False),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        accept_on_read=acknowledge == ACKNOWLEDGE_ON_READ,
    )


def client_properties(properties: Mapping[str, str]) -> ClientProperties:
    """The properties of `kafka.…`, without that prefix."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        _invalid("kafka.security.protocol", protocol, ", ".join(SECURITY_PROTOCOLS))
    mechanism, username, password = _sasl(properties) if protocol.startswith("SASL_") else (None, "", "")
    return ClientProperties(
        bootstrap=_addresses(_required(properties, "bootstrap.servers", shown="kafka.bootstrap.servers")),
        client_id=properties.get("client.id", "kshare-spark"),
        rack=properties.get("client.rack"),
        tls=protocol.endswith("SSL"),
        ca_location=_ca_location(properties),
        certificate_location=properties.get("ssl.certificate.location"),
        key_location=properties.get("ssl.key.location"),
        key_password=properties.get("ssl.key.password"),
        check_host_name=properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "https",
        sasl_mechanism=mechanism,
        sasl_username=username,
        sasl_password=password,
        request_timeout_ms=_positive(properties, "request.timeout.ms", "kafka.") or 30_000,
        api_timeout_ms=_positive(properties, "default.api.timeout.ms", "kafka.") or 60_000,
        fetch_max_wait_ms=_positive(properties, "fetch.max.wait.ms", "kafka.") or 500,
        fetch_max_bytes=_positive(properties, "fetch.max.bytes", "kafka.") or 50 * 1024 * 1024,
        partition_fetch_bytes=_positive(properties, "max.partition.fetch.bytes", "kafka.") or 8 * 1024 * 1024,
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in (*READ_OPTIONS, *INTERNAL_OPTIONS)}
    for name in options:
        if not name.startswith("kafka."):
            if name not in known:
                raise InvalidOption(
                    f"the kshare source has no option {name}; it has {', '.join(READ_OPTIONS)} and kafka.*"
                )
            continue
        plain = name.removeprefix("kafka.")
        if plain in NOT_OURS:
            raise InvalidOption(f"option {name} cannot be set: {NOT_OURS[plain]}")
        if plain not in CLIENT_PROPERTIES:
            allowed = ", ".join(f"kafka.{known}" for known in CLIENT_PROPERTIES)
            raise InvalidOption(f"the kshare source's client has no property {plain}; allowed are {allowed}")


def _group_id(options: Mapping[str, str]) -> str:
    plain, of_client = options.get("group.id"), options.get("kafka.group.id")
    if plain and of_client and plain != of_client:
        raise InvalidOption(f"group.id is {plain} and kafka.group.id is {of_client}; give one of them")
    group = plain or of_client
    if not group:
        raise InvalidOption("option group.id is missing: the share group through which records are taken")
    return group


def _required(options: Mapping[str, str], name: str, *, shown: str = "") -> str:
    value = options.get(name.lower())
    if not value:
        raise InvalidOption(f"option {shown or name} is missing")
    return value


def _positive(options: Mapping[str, str], name: str, prefix: str = "") -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not value.isdecimal() or not 0 < int(value) < 1 << 31:
        _invalid(prefix + name, value, "whole numbers from 1 to 2147483647")
    return int(value)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower(), str(default)).lower()
    if value not in ("true", "false"):
        _invalid(name, value, "true, false")
    return value == "true"


def _addresses(servers: str) -> tuple[tuple[str, int], ...]:
    found = []
    for server in servers.split(","):
        match = _ADDRESS.match(server)
        if match is None or not 0 < int(match[3]) < 1 << 16:
            _invalid("kafka.bootstrap.servers", servers, "host:port,host:port")
        found.append((match[1] or match[2], int(match[3])))
    return tuple(found)


def _sasl(properties: Mapping[str, str]) -> tuple[str, str, str]:
    mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "PLAIN").upper()
    if mechanism not in SASL_MECHANISMS:
        _invalid("kafka.sasl.mechanism", mechanism, ", ".join(SASL_MECHANISMS))
    jaas = properties.get("sasl.jaas.config", "")
    user, password = _JAAS_USER.search(jaas), _JAAS_PASSWORD.search(jaas)
    username = properties.get("sasl.username") or (user[1] if user else "")
    if not username:
        raise InvalidOption(f"option kafka.sasl.username (or kafka.sasl.jaas.config) is missing for {mechanism}")
    return mechanism, username, properties.get("sasl.password") or (password[1] if password else "")


def _ca_location(properties: Mapping[str, str]) -> str | None:
    store = properties.get("ssl.truststore.location")
    if store and properties.get("ssl.truststore.type", "").upper() != "PEM":
        raise InvalidOption(
            "option kafka.ssl.truststore.location needs kafka.ssl.truststore.type=PEM; "
            "of other stores, export the certificates as PEM and give kafka.ssl.ca.location"
        )
    return properties.get("ssl.ca.location") or store


def _invalid(name: str, value: str, allowed: str) -> NoReturn:
    raise InvalidOption(f"option {name} is {value!r}; allowed: {allowed}")
