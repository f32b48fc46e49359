"""Broker configs of SASL, TLS and authorisation, as in Apache Kafka 4.3.1.

A row with a text has an effect here. The others are not implemented: only their defaults are accepted (`process`).
"""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition
from kshare_core.configs.rows import boolean, class_name, double, integer, listing, long, password, short, string

BROKER_SECURITY: tuple[ConfigDefinition, ...] = (
    string(
        "authorizer.class.name",
        "",
        choices=("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        text="Kafka's StandardAuthorizer: gateways let clients do only what ACLs allow (super.users, "
        "allow.everyone.if.no.acl.found). Empty: everybody may do everything.",
    ),
    integer(
        "connection.failed.authentication.delay.ms",
        100,
        low=0,
        text="How long a client waits for the answer to a failed authentication, after which its connection is closed.",
    ),
    long(
        "connections.max.reauth.ms",
        0,
        text="How long a session of SASL lasts: then a client must authenticate again. 0: as long as its connection.",
    ),
    long("delegation.token.expiry.check.interval.ms", 3600000, low=1),
    long("delegation.token.expiry.time.ms", 86400000, low=1),
    long("delegation.token.max.lifetime.ms", 604800000, low=1),
    password("delegation.token.secret.key", None),
    class_name(
        "principal.builder.class",
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        dynamic=True,
    ),
    class_name("sasl.client.callback.handler.class", None),
    listing(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        dynamic=True,
        text="Mechanisms of SASL listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Read when a gateway "
        "starts.",
    ),
    password(
        "sasl.jaas.config",
        None,
        dynamic=True,
        text="The login module of a mechanism, as listener.name.<listener>.<mechanism>.sasl.jaas.config; PLAIN's has "
        "the users (user_alice=...). Read when a gateway starts.",
    ),
    string("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", dynamic=True),
    long("sasl.kerberos.min.time.before.relogin", 60000, dynamic=True),
    listing("sasl.kerberos.principal.to.local.rules", ("DEFAULT",), dynamic=True),
    string("sasl.kerberos.service.name", None, dynamic=True),
    double("sasl.kerberos.ticket.renew.jitter", 0.05, dynamic=True),
    double("sasl.kerberos.ticket.renew.window.factor", 0.8, dynamic=True),
    class_name("sasl.login.callback.handler.class", None),
    class_name("sasl.login.class", None),
    integer("sasl.login.connect.timeout.ms", None),
    integer("sasl.login.read.timeout.ms", None),
    short("sasl.login.refresh.buffer.seconds", 300, dynamic=True),
    short("sasl.login.refresh.min.period.seconds", 60, dynamic=True),
    double("sasl.login.refresh.window.factor", 0.8, dynamic=True),
    double("sasl.login.refresh.window.jitter", 0.05, dynamic=True),
    long("sasl.login.retry.backoff.max.ms", 10000),
    long("sasl.login.retry.backoff.ms", 100),
    string("sasl.mechanism.controller.protocol", "GSSAPI"),
    string("sasl.mechanism.inter.broker.protocol", "GSSAPI", dynamic=True),
    string("sasl.oauthbearer.assertion.algorithm", "RS256", choices=("ES256", "RS256"), ignore_case=True),
    string("sasl.oauthbearer.assertion.claim.aud", None),
    integer("sasl.oauthbearer.assertion.claim.exp.seconds", 300, low=0, high=86400),
    string("sasl.oauthbearer.assertion.claim.iss", None),
    boolean("sasl.oauthbearer.assertion.claim.jti.include", False),
    integer("sasl.oauthbearer.assertion.claim.nbf.seconds", 60, low=0, high=3600),
    string("sasl.oauthbearer.assertion.claim.sub", None),
    string("sasl.oauthbearer.assertion.file", None),
    string("sasl.oauthbearer.assertion.private.key.file", None),
    password("sasl.oauthbearer.assertion.private.key.passphrase", None),
    string("sasl.oauthbearer.assertion.template.file", None),
    string("sasl.oauthbearer.client.credentials.client.id", None),
    password("sasl.oauthbearer.client.credentials.client.secret", None),
    integer("sasl.oauthbearer.clock.skew.seconds", 30, text="How far the clock of a token's issuer may be off."),
    listing("sasl.oauthbearer.expected.audience", (), text="Audiences of which a token must name one."),
    string("sasl.oauthbearer.expected.issuer", None, text="The issuer that a token must name."),
    long("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3600000, text="How often the keys of tokens are fetched."),
    long("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10000),
    long("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100),
    string(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        text="The JSON Web Key Set that signed tokens are checked against: https://..., http://... or file:///...",
    ),
    class_name(
        "sasl.oauthbearer.jwt.retriever.class", "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever"
    ),
    class_name(
        "sasl.oauthbearer.jwt.validator.class", "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator"
    ),
    string("sasl.oauthbearer.scope", None),
    string("sasl.oauthbearer.scope.claim.name", "scope", text="The claim of a token that has its scopes."),
    string("sasl.oauthbearer.sub.claim.name", "sub", text="The claim of a token that names the principal."),
    string("sasl.oauthbearer.token.endpoint.url", None),
    class_name(
        "sasl.server.callback.handler.class",
        None,
        text="For OAUTHBEARER: Kafka's OAuthBearerValidatorCallbackHandler, which takes signed tokens only.",
    ),
    integer("sasl.server.max.receive.size", 524288, text="Longest request of a client that is not authenticated."),
    string("security.inter.broker.protocol", "PLAINTEXT", choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    string("security.providers", None),
    boolean("ssl.allow.dn.changes", False),
    boolean("ssl.allow.san.changes", False),
    listing(
        "ssl.cipher.suites",
        (),
        dynamic=True,
        text="Cipher suites of TLS listeners, by Java's or OpenSSL's names; empty: OpenSSL's secure defaults.",
    ),
    string(
        "ssl.client.auth",
        "none",
        choices=("required", "requested", "none"),
        dynamic=True,
        text="Whether TLS listeners require, request or ignore client certificates, which the truststore must verify. "
        "For SASL_SSL only with the prefix of the listener.",
    ),
    listing(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        dynamic=True,
        text="TLS versions of TLS listeners: TLSv1.2, TLSv1.3 or both.",
    ),
    string("ssl.endpoint.identification.algorithm", "https", dynamic=True),
    class_name("ssl.engine.factory.class", None, dynamic=True),
    password("ssl.key.password", None, dynamic=True, text="Password of an encrypted private key in PEM."),
    string("ssl.keymanager.algorithm", "SunX509", dynamic=True),
    password(
        "ssl.keystore.certificate.chain",
        None,
        dynamic=True,
        text="The certificate chain of TLS listeners in PEM, the server certificate first, instead of a file.",
    ),
    password("ssl.keystore.key", None, dynamic=True, text="The private key in PEM, instead of a file."),
    string(
        "ssl.keystore.location",
        None,
        dynamic=True,
        text="A file with the private key and certificates of TLS listeners; in PEM also a directory with tls.crt and "
        "tls.key, as a Kubernetes Secret is mounted. Read again when it changes.",
    ),
    password("ssl.keystore.password", None, dynamic=True, text="Password of a PKCS12 keystore."),
    string("ssl.keystore.type", "JKS", dynamic=True, text="PEM or PKCS12; Java's JKS is not supported."),
    string(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        text="How the subject of a client certificate becomes a principal: RULE:pattern/replacement/[LU] or DEFAULT.",
    ),
    string("ssl.protocol", "TLSv1.3", dynamic=True),
    string("ssl.provider", None, dynamic=True),
    string("ssl.secure.random.implementation", None, dynamic=True),
    string("ssl.trustmanager.algorithm", "PKIX", dynamic=True),
    password(
        "ssl.truststore.certificates",
        None,
        dynamic=True,
        text="The authorities that verify client certificates, in PEM, instead of a file.",
    ),
    string(
        "ssl.truststore.location",
        None,
        dynamic=True,
        text="A file with the authorities that verify client certificates. Read again when it changes.",
    ),
    password("ssl.truststore.password", None, dynamic=True, text="Password of a PKCS12 truststore."),
    string("ssl.truststore.type", "JKS", dynamic=True, text="PEM or PKCS12; Java's JKS is not supported."),
)
