"""Options of the share source: accepted ones, and the errors for others."""

from __future__ import annotations

import pickle

import pytest

from kshare_spark.share_source.options import InvalidOption, read_options

LEAST = {"kafka.bootstrap.servers": "one:9092, [::1]:9093", "subscribe": "orders, bills", "group.id": "workers"}


def test_the_least_and_its_defaults() -> None:
    options = read_options(LEAST)
    assert options.client.bootstrap == (("one", 9092), ("::1", 9093))
    assert options.topics == ("orders", "bills")
    assert options.group_id == "workers"
    assert (options.max_records, options.max_bytes, options.partitions) == (None, None, None)
    assert options.fail_on_data_loss and not options.include_headers and not options.accept_on_read
    assert not options.client.tls and options.client.sasl_mechanism is None


def test_names_are_found_whatever_their_case_and_values_are_read() -> None:
    options = read_options(
        {
            **{name: value for name, value in LEAST.items() if name != "group.id"},
            "kafka.group.id": "workers",
            "MAXRECORDSPERTRIGGER": "10",
            "maxBytesPerTrigger": "1000",
            "numPartitions": "3",
            "includeHeaders": "TRUE",
            "failOnDataLoss": "false",
            "acknowledge": "onRead",
            "kafka.fetch.max.wait.ms": "20",
        }
    )
    assert (options.group_id, options.max_records, options.max_bytes, options.partitions) == ("workers", 10, 1000, 3)
    assert options.include_headers and not options.fail_on_data_loss and options.accept_on_read
    assert options.client.fetch_max_wait_ms == 20


def test_security_as_java_and_librdkafka_name_it() -> None:
    by_names = {"kafka.sasl.username": "ann", "kafka.sasl.password": "secret", "kafka.sasl.mechanisms": "scram-sha-256"}
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="secret";'
    by_jaas = {"kafka.sasl.jaas.config": jaas, "kafka.sasl.mechanism": "SCRAM-SHA-256"}
    for given in (by_names, by_jaas):
        client = read_options({**LEAST, "kafka.security.protocol": "sasl_ssl", **given}).client
        assert (client.tls, client.sasl_mechanism) == (True, "SCRAM-SHA-256")
        assert (client.sasl_username, client.sasl_password) == ("ann", "secret")
        assert client.check_host_name
        assert "secret" not in repr(client)
        assert pickle.loads(pickle.dumps(client)) == client


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"subscribe": None}, "option subscribe is missing"),
        ({"subscribe": "a,,b"}, "topic names"),
        ({"group.id": None}, "group.id is missing"),
        ({"kafka.group.id": "others"}, "give one of them"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "nowhere"}, "'nowhere'; allowed: host:port"),
        ({"kafka.bootstrap.servers": "one:70000"}, "host:port"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger is '0'; allowed: whole numbers from 1"),
        ({"maxRecordsPerTrigger": "-3"}, "maxRecordsPerTrigger is '-3'"),
        ({"kafka.fetch.max.wait.ms": "soon"}, "kafka.fetch.max.wait.ms is 'soon'"),
        ({"includeHeaders": "yes"}, "includeHeaders is 'yes'; allowed: true, false"),
        ({"acknowledge": "always"}, "acknowledge is 'always'; allowed: never, onRead"),
        ({"startingOffsets": "earliest"}, "has no option startingoffsets; it has subscribe"),
        ({"kafka.auto.offset.reset": "earliest"}, "share.auto.offset.reset"),
        ({"kafka.enable.auto.commit": "true"}, "accepted when Spark has committed"),
        ({"kafka.linger.ms": "1"}, "no property linger.ms; allowed are kafka.bootstrap.servers"),
        ({"kafka.security.protocol": "TLS"}, "'TLS'; allowed: PLAINTEXT, SSL"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "allowed: PLAIN, SCRAM-SHA-256"),
        ({"kafka.security.protocol": "SASL_PLAINTEXT"}, "kafka.sasl.username"),
        ({"kafka.ssl.truststore.location": "/a.jks"}, "kafka.ssl.truststore.type=PEM"),
    ],
)
def test_what_is_wrong_is_told(changed: dict[str, str | None], told: str) -> None:
    given = {name: value for name, value in {**LEAST, **changed}.items() if value is not None}
    with pytest.raises(InvalidOption) as error:
        read_options(given)
    assert told in str(error.value)


def test_a_password_is_in_no_error() -> None:
    with pytest.raises(InvalidOption) as error:
        read_options({**LEAST, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.password": "secret"})
    assert "secret" not in str(error.value)
