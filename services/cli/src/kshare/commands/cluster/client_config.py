"""`kshare client-config`: a worker or producer of a share group in Python, Java, Go or Node, for this cluster.

The connection's properties are those of `--command-config`, in each client's own names; a comment names those that a
client has no name for. Secrets are not printed: the program reads them from KAFKA_PASSWORD and KAFKA_KEY_PASSWORD.
`make test-client-configs` runs the workers against a live cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kshare.client_properties import Properties, security_protocol
from kshare.failure import BAD_USE, CommandFailed
from kshare_kafka_client.client_security import SASL_PLAINTEXT, SASL_SSL, SSL

SECRETS = {"sasl.password": "KAFKA_PASSWORD", "ssl.key.password": "KAFKA_KEY_PASSWORD"}
"""Properties whose values are read from the environment."""
TRANSLATED = frozenset(
    {
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
    }
)
"""Properties of librdkafka that the programs in Java and Go have in their clients' terms."""
JAVA_KEY = "// Java 17 reads an encrypted key only of: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in KEY\n"
"""Its PBES2, which is openssl's default, is no SecretKeyFactory that kafka-clients 4.3.1 finds."""


class Language(StrEnum):
    PYTHON = "python"
    JAVA = "java"
    GO = "go"
    NODE = "node"


class Target(NamedTuple):
    """The cluster, topic and group that a program is for."""

    bootstrap: str
    properties: Properties
    topic: str
    group: str

    @property
    def protocol(self) -> str:
        return security_protocol(self.properties)


def program(language: Language, target: Target) -> str:
    """The program, with a line break at its end; CommandFailed for what its client cannot do."""
    write: Mapping[Language, Callable[[Target], str]] = {
        Language.PYTHON: _python,
        Language.JAVA: _java,
        Language.GO: _go,
        Language.NODE: _node,
    }
    return write[language](target)


def _python(target: Target) -> str:
    settings = {"bootstrap.servers": target.bootstrap, **target.properties}
    settings |= {"group.id": target.group, "share.acknowledgement.mode": "explicit"}
    lines = "".join(f"        {json.dumps(name)}: {_python_value(name, value)},\n" for name, value in settings.items())
    needs_environment = "import os\n\n" if set(settings) & set(SECRETS) else ""
    return f"""# pip install "confluent-kafka>=2.16"
{needs_environment}from confluent_kafka import AcknowledgeType, ShareConsumer


def handle(value):
    print(value.decode())


consumer = ShareConsumer(
    {{
{lines}    }}
)
consumer.subscribe([{json.dumps(target.topic)}])
while True:
    for message in consumer.poll(1.0):
        try:
            handle(message.value())
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        except Exception:  # delivered again, at most as often as the group's share.delivery.count.limit
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
    consumer.commit_sync()
"""


def _python_value(name: str, value: str) -> str:
    return f'os.environ["{SECRETS[name]}"]' if name in SECRETS else json.dumps(value)


def _java(target: Target) -> str:
    settings = {"bootstrap.servers": json.dumps(target.bootstrap)}
    settings |= _java_connection(target)
    settings |= {"group.id": json.dumps(target.group), "share.acknowledgement.mode": '"explicit"'}
    lines = "".join(f"        settings.put({json.dumps(name)}, {value});\n" for name, value in settings.items())
    reads_files = any("Files." in value for value in settings.values())
    files = "import java.nio.file.Files;\nimport java.nio.file.Path;\n" if reads_files else ""
    encrypted = JAVA_KEY if "ssl.key.password" in settings else ""
    throws = " throws java.io.IOException" if reads_files else ""
    return f"""// org.apache.kafka:kafka-clients:4.3.1
{_not_translated(target)}{encrypted}{files}import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class Worker {{
    public static void main(String[] arguments){throws} {{
        Properties settings = new Properties();
{lines}        var text = new StringDeserializer();
        try (var consumer = new KafkaShareConsumer<>(settings, text, text)) {{
            consumer.subscribe(List.of({json.dumps(target.topic)}));
            while (true) {{
                for (var record : consumer.poll(Duration.ofSeconds(1))) {{
                    System.out.println(record.value()); // an exception here: acknowledge with RELEASE or REJECT
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }}
                consumer.commitSync();
            }}
        }}
    }}
}}
"""


def _java_connection(target: Target) -> dict[str, str]:
    """Java's settings for TLS and SASL; the values are expressions of Java."""
    found: dict[str, str] = {}
    given = target.properties
    if "security.protocol" in given:
        found["security.protocol"] = json.dumps(target.protocol.upper())
    if target.protocol in (SSL, SASL_SSL):
        if "ssl.ca.location" in given:
            found["ssl.truststore.type"] = '"PEM"'
            found["ssl.truststore.location"] = json.dumps(given["ssl.ca.location"])
        found |= _java_certificate(given)
    if target.protocol in (SASL_PLAINTEXT, SASL_SSL):
        mechanism = _mechanism(given)
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        user = given.get("sasl.username", "").replace("\\", "\\\\").replace('"', '\\"')  # as JAAS quotes
        login = f'org.apache.kafka.common.security.{module} required username="{user}" password="'
        found["sasl.mechanism"] = json.dumps(mechanism)
        quoted = r"""System.getenv("KAFKA_PASSWORD").replaceAll("[\\\\\"]", "\\\\$0")"""
        found["sasl.jaas.config"] = f'{json.dumps(login)}\n            + {quoted} + "\\";"'
    return found


def _java_certificate(given: Properties) -> dict[str, str]:
    """Java's settings for the client's own certificate; its key is in the same file or, as PKCS #8, in another."""
    found: dict[str, str] = {}
    if "ssl.certificate.location" not in given:
        return found
    certificate = given["ssl.certificate.location"]
    key = given.get("ssl.key.location", certificate)
    found["ssl.keystore.type"] = '"PEM"'
    if key == certificate:
        found["ssl.keystore.location"] = json.dumps(certificate)
    else:
        found["ssl.keystore.certificate.chain"] = f"Files.readString(Path.of({json.dumps(certificate)}))"
        found["ssl.keystore.key"] = f"Files.readString(Path.of({json.dumps(key)}))"
    if "ssl.key.password" in given:
        found["ssl.key.password"] = f'System.getenv("{SECRETS["ssl.key.password"]}")'
    return found


def _not_translated(target: Target) -> str:
    """A comment of the properties that the program lacks, of Java and Go."""
    names = sorted(set(target.properties) - TRANSLATED)
    return f"// Not translated from --command-config: {', '.join(names)}\n" if names else ""


def _go(target: Target) -> str:
    imports = ["context", "fmt", "github.com/twmb/franz-go/pkg/kgo"]
    options = [
        f"kgo.SeedBrokers({', '.join(json.dumps(each.strip()) for each in target.bootstrap.split(','))})",
        f"kgo.ShareGroup({json.dumps(target.group)})",
        f"kgo.ConsumeTopics({json.dumps(target.topic)})",
    ]
    before = ""
    if target.protocol in (SSL, SASL_SSL):
        imports.append("crypto/tls")
        fields, before = _go_tls(target.properties, imports)
        options.append(f"kgo.DialTLSConfig(&tls.Config{{{fields}}})")
    if target.protocol in (SASL_PLAINTEXT, SASL_SSL):
        option, more = _go_sasl(target.properties)
        options.append(option)
        imports += [each for each in more if each not in imports]
    standard = sorted(each for each in imports if "." not in each)
    others = sorted(each for each in imports if "." in each)
    lines = "\n".join(f'\t"{each}"' for each in standard) + "\n\n" + "\n".join(f'\t"{each}"' for each in others)
    chosen = "".join(f"\t\t{option},\n" for option in options)
    return f"""// go get github.com/twmb/franz-go@v1.22.2
{_not_translated(target)}package main

import (
{lines}
)

func main() {{
{before}	client, err := kgo.NewClient(
{chosen}	)
	if err != nil {{
		panic(err)
	}}
	defer client.Close()
	for {{
		fetches := client.PollFetches(context.Background())
		for _, record := range fetches.Records() {{
			fmt.Println(string(record.Value)) // where it fails: record.Ack(kgo.AckRelease)
			record.Ack(kgo.AckAccept)
		}}
		if err := client.FlushAcks(context.Background()); err != nil {{
			fmt.Println(err)
		}}
	}}
}}
"""


def _go_tls(given: Properties, imports: list[str]) -> tuple[str, str]:
    """The fields of tls.Config, and the statements that make their values."""
    fields, before = [], ""
    if "ssl.key.password" in given:
        raise CommandFailed("Go's crypto/tls reads no encrypted key: give one without ssl.key.password", BAD_USE)
    if "ssl.ca.location" in given:
        imports += ["crypto/x509", "os"]
        path = json.dumps(given["ssl.ca.location"])
        before += f"\tauthority, err := os.ReadFile({path})\n\tif err != nil {{\n\t\tpanic(err)\n\t}}\n"
        before += "\troots := x509.NewCertPool()\n\troots.AppendCertsFromPEM(authority)\n"
        fields.append("RootCAs: roots")
    if "ssl.certificate.location" in given:
        certificate = json.dumps(given["ssl.certificate.location"])
        key = json.dumps(given.get("ssl.key.location", given["ssl.certificate.location"]))
        before += f"\town, err := tls.LoadX509KeyPair({certificate}, {key})\n\tif err != nil {{\n\t\tpanic(err)\n\t}}\n"
        fields.append("Certificates: []tls.Certificate{own}")
    return ", ".join(fields), before


def _go_sasl(given: Properties) -> tuple[str, list[str]]:
    mechanism, user = _mechanism(given), json.dumps(given.get("sasl.username", ""))
    if mechanism == "PLAIN":
        auth = f'plain.Auth{{User: {user}, Pass: os.Getenv("KAFKA_PASSWORD")}}.AsMechanism()'
        return f"kgo.SASL({auth})", ["os", "github.com/twmb/franz-go/pkg/sasl/plain"]
    kind = "AsSha256Mechanism" if mechanism == "SCRAM-SHA-256" else "AsSha512Mechanism"
    auth = f'scram.Auth{{User: {user}, Pass: os.Getenv("KAFKA_PASSWORD")}}.{kind}()'
    return f"kgo.SASL({auth})", ["os", "github.com/twmb/franz-go/pkg/sasl/scram"]


def _node(target: Target) -> str:
    settings = {"bootstrap.servers": target.bootstrap, **target.properties}
    lines = "".join(f"  {json.dumps(name)}: {_node_value(name, value)},\n" for name, value in settings.items())
    return f"""// npm install @confluentinc/kafka-javascript
// A producer. No Node client has share consumers yet (confluent-kafka-javascript: issue 514), so that workers of group
// {target.group} run in Python, Java or Go.
const {{ Kafka }} = require("@confluentinc/kafka-javascript").KafkaJS;

async function main() {{
  const producer = new Kafka().producer({{
{_indented(lines)}  }});
  await producer.connect();
  await producer.send({{ topic: {json.dumps(target.topic)}, messages: [{{ key: "customer-7", value: "an order" }}] }});
  await producer.disconnect();
}}

main();
"""


def _node_value(name: str, value: str) -> str:
    return f"process.env.{SECRETS[name]}" if name in SECRETS else json.dumps(value)


def _indented(lines: str) -> str:
    return "".join(f"  {line}\n" for line in lines.splitlines())


def _mechanism(given: Properties) -> str:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms") or ""
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        text = f"programs are written for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, not for sasl.mechanism={mechanism}"
        raise CommandFailed(text, BAD_USE)
    return mechanism
