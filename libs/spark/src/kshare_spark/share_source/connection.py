"""A connection of the share source, authenticated, with the API versions that the broker serves."""

from __future__ import annotations

import ssl

from kshare_kafka_client import connection
from kshare_kafka_client.connection import ConnectionFailed
from kshare_spark.share_source.options import ClientProperties
from kshare_upstream.sasl import Credentials

SOFTWARE_NAME = "kshare-spark"


class Connection(connection.Connection):
    """A connection that is ready for requests."""

    def __init__(self, address: tuple[str, int], properties: ClientProperties) -> None:
        """Raises ConnectionFailed or AuthenticationFailed."""
        try:
            tls = _tls(properties) if properties.tls else None
        except OSError as error:
            raise ConnectionFailed(f"TLS with broker {address[0]}:{address[1]} failed: {error}") from error
        super().__init__(
            address, client_id=properties.client_id, timeout_s=properties.request_timeout_ms / 1000, tls=tls
        )
        try:
            self.versions = self.ask_versions(SOFTWARE_NAME)
            if properties.sasl_mechanism is not None:
                user, password = properties.sasl_username, properties.sasl_password
                self.authenticate(Credentials(properties.sasl_mechanism, user, password))
        except BaseException:
            self.close()
            raise

    def serves(self, api_key: int, version: int) -> bool:
        lowest, highest = self.versions.get(api_key, (0, -1))
        return lowest <= version <= highest


def _tls(properties: ClientProperties) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=properties.ca_location)
    context.check_hostname = properties.check_host_name
    if properties.certificate_location:
        context.load_cert_chain(properties.certificate_location, properties.key_location, properties.key_password)
    return context
