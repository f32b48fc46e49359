"""`kshare client-config`: programs that are valid in their language, with the connection's settings and no secret."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kshare.commands.cluster.client_config import Language, Target, program
from kshare.failure import BAD_USE, CommandFailed
from support.environment.unavailable import unavailable

SASL = {
    "security.protocol": "sasl_ssl",
    "ssl.ca.location": "/etc/ca.pem",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": 'worker "7"',
    "sasl.password": "secret-word",
}
PLAIN = Target("kafka-1:9092,kafka-2:9092", {}, "orders", 'bill"ing')
SECURE = PLAIN._replace(properties=SASL)
TLS = PLAIN._replace(
    properties={"security.protocol": "ssl", "ssl.ca.location": "ca", "ssl.certificate.location": "own.pem"}
)


def installed(name: str) -> str:
    """The path of a program, also where Go was unpacked without a change of PATH."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    return found or unavailable(f"{name} is missing; it comes with Go or Node")


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("target", [PLAIN, SECURE, TLS], ids=["plain", "sasl", "tls"])
def test_programs_name_the_cluster_and_no_secret(language: Language, target: Target) -> None:
    text = program(language, target)
    assert "kafka-1:9092" in text and "kafka-2:9092" in text and "orders" in text and text.endswith("\n")
    assert "secret-word" not in text
    assert ("KAFKA_PASSWORD" in text) is (target is SECURE)


def test_python_is_valid_and_has_all_properties() -> None:
    for target in (PLAIN, SECURE, TLS):
        tree = ast.parse(program(Language.PYTHON, target))
        (settings,) = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
        keys = {ast.literal_eval(key) for key in settings.keys if key is not None}
        assert keys == {"bootstrap.servers", "group.id", "share.acknowledgement.mode", *target.properties}


@pytest.mark.parametrize("target", [PLAIN, SECURE, TLS], ids=["plain", "sasl", "tls"])
def test_go_is_formatted(tmp_path: Path, target: Target) -> None:
    source = tmp_path / "main.go"
    source.write_text(program(Language.GO, target))
    done = subprocess.run([installed("gofmt"), "-l", str(source)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("target", [PLAIN, SECURE, TLS], ids=["plain", "sasl", "tls"])
def test_node_is_valid(tmp_path: Path, target: Target) -> None:
    source = tmp_path / "producer.js"
    source.write_text(program(Language.NODE, target))
    subprocess.run([installed("node"), "--check", str(source)], check=True)


def test_java_has_kafkas_names() -> None:
    text = program(Language.JAVA, SECURE)
    assert 'settings.put("security.protocol", "SASL_SSL");' in text
    assert 'settings.put("ssl.truststore.location", "/etc/ca.pem");' in text
    assert "ScramLoginModule required" in text and 'System.getenv("KAFKA_PASSWORD")' in text
    assert "librdkafka" not in text and "ssl.ca.location" not in text


def test_a_mechanism_without_a_program_is_refused() -> None:
    target = PLAIN._replace(properties={"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"})
    with pytest.raises(CommandFailed, match="OAUTHBEARER") as refused:
        program(Language.JAVA, target)
    assert refused.value.exit_code == BAD_USE


CERTIFICATE = {"security.protocol": "ssl", "ssl.certificate.location": "own.pem"}
SEPARATE = {**CERTIFICATE, "ssl.key.location": "own.key"}


def test_java_has_the_certificate_from_one_file_or_two() -> None:
    both = PLAIN._replace(properties={**CERTIFICATE, "ssl.key.location": "own.pem"})
    for one_file in (TLS, both):
        text = program(Language.JAVA, one_file)
        assert 'settings.put("ssl.keystore.location", "own.pem");' in text and "Files" not in text
    text = program(Language.JAVA, PLAIN._replace(properties=SEPARATE))
    assert 'settings.put("ssl.keystore.certificate.chain", Files.readString(Path.of("own.pem")));' in text
    assert 'settings.put("ssl.keystore.key", Files.readString(Path.of("own.key")));' in text
    assert "import java.nio.file.Files;" in text and "throws java.io.IOException" in text


def test_the_password_of_a_key_is_used_or_refused() -> None:
    encrypted = PLAIN._replace(properties={**SEPARATE, "ssl.key.password": "secret-word"})
    text = program(Language.JAVA, encrypted)
    assert 'settings.put("ssl.key.password", System.getenv("KAFKA_KEY_PASSWORD"));' in text
    assert "secret-word" not in text
    with pytest.raises(CommandFailed, match="reads no encrypted key"):
        program(Language.GO, encrypted)


def test_properties_without_a_name_are_said() -> None:
    target = PLAIN._replace(properties={"debug": "all", "client.rack": "a", "security.protocol": "plaintext"})
    for language in (Language.JAVA, Language.GO):
        assert "// Not translated from --command-config: client.rack, debug\n" in program(language, target)
        assert "Not translated" not in program(language, SECURE)
    assert '"debug": "all"' in program(Language.PYTHON, target)
