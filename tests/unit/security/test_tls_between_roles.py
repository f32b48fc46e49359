"""Streams between roles with `kshare.rpc.ssl.*`: accepted peers, unencrypted services, and refusals."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from kshare_core.configs import InvalidConfig, process_configs
from kshare_rpc.exchange.tls import EVERY_ROLE, ExchangeTls
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LIST_GROUPS
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallFailed, ChannelUnavailable, Method, Service
from kshare_servicekit.metrics_server import Metrics
from kshare_servicekit.probe import probe
from kshare_servicekit.tls.between_roles import (
    check_roles_are_known,
    exchange_tls,
    exchange_tls_of_variables,
    needs_known_roles,
)
from kshare_servicekit.tls.role_authority import RoleAuthority
from support.environment.certificates import Authority, Issued
from support.servicekit.scraped import scraped

AUTHORITY = Authority("roles")
KEYSTORE, TRUSTSTORE = "kshare.rpc.ssl.keystore.location", "kshare.rpc.ssl.truststore.location"


def tls(folder: Path, issued: Issued | None = None, authority: Authority = AUTHORITY, **texts: str) -> ExchangeTls:
    issued = issued or AUTHORITY.issue("role")
    folder.mkdir(exist_ok=True)
    stores = {
        KEYSTORE: str(issued.write_combined(folder / "role.pem")),
        TRUSTSTORE: str(authority.write(folder / "ca.pem")),
    }
    given = {f"kshare.rpc.ssl.{name.replace('_', '.')}": text for name, text in texts.items()}
    found = exchange_tls(process_configs({**stores, **given})[0])
    assert found is not None
    return found


async def groups(request: object, payload: memoryview) -> coordinator_pb2.ListGroupsResponse:
    return coordinator_pb2.ListGroupsResponse(error_code=7)


def served(server_tls: ExchangeTls, scene: Callable[[str, str], Awaitable[None]], listen: str = "127.0.0.1:0") -> None:
    """Runs a scene with a served coordinator's address and its operations address."""

    async def run() -> None:
        network = GrpcNetwork(tls=server_tls)
        server = await network.serve(listen, [Service("Coordinator", {LIST_GROUPS: groups})])
        assert network.operations_address is not None
        try:
            await asyncio.wait_for(scene(server.address, network.operations_address), 30)
        finally:
            await server.stop(0)

    asyncio.run(run())


async def asked(address: str, client: ExchangeTls | None) -> int:
    channel = GrpcNetwork(tls=client).connect(address)
    try:
        answer, _ = await channel.call(LIST_GROUPS, coordinator_pb2.ListGroupsRequest(), timeout_ms=3_000)
        return answer.error_code
    finally:
        await channel.close()


def test_the_expiry_is_that_of_the_newest_files(tmp_path: Path) -> None:
    """Also before a connection uses them, so that the alert ends with the renewal."""
    soon, later = (AUTHORITY.issue("role", lifetime=datetime.timedelta(days=days)) for days in (3, 90))
    metrics = Metrics()
    metrics.add_role_certificate(tls(tmp_path / "server", soon))
    for issued in (soon, later):
        issued.write_combined(tmp_path / "server" / "role.pem")
        shown = asyncio.run(scraped(metrics)).value("role_certificate_expiry_timestamp_seconds")
        assert shown == issued.certificate.not_valid_after_utc.timestamp()


def test_only_clients_with_a_certificate_get_in(tmp_path: Path) -> None:
    foreign = Authority("foreign")

    async def scene(address: str, operations: str) -> None:
        assert await asked(address, tls(tmp_path / "other")) == 7
        for client in (
            None,
            tls(tmp_path / "foreign", foreign.issue("role")),
            tls(tmp_path / "distrustful", authority=foreign),
        ):
            with pytest.raises(ChannelUnavailable):
                await asked(address, client)
        assert await asked(address, tls(tmp_path / "other")) == 7

    served(tls(tmp_path / "server"), scene)


def test_the_certificate_must_have_the_name_unless_that_is_switched_off(tmp_path: Path) -> None:

    async def scene(address: str, operations: str) -> None:
        elsewhere = f"127.0.0.2:{address.rpartition(':')[2]}"
        with pytest.raises(ChannelUnavailable):
            await asked(elsewhere, tls(tmp_path / "strict"))
        loose = tls(tmp_path / "loose", endpoint_identification_algorithm="")
        assert await asked(elsewhere, loose) == 7
        assert await asked(f"127.0.0.3:{address.rpartition(':')[2]}", tls(tmp_path / "strict")) == 7

    served(tls(tmp_path / "server", AUTHORITY.issue("role", "127.0.0.3")), scene, "0.0.0.0:0")


def test_the_operations_face_has_health_only(tmp_path: Path) -> None:
    async def scene(address: str, operations: str) -> None:
        assert await asyncio.to_thread(probe, operations) is None
        async with grpc.aio.insecure_channel(operations) as channel:
            call: Any = channel.unary_unary("/kshare.v1.Coordinator/ListGroups")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call(b"")
            assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED

    served(tls(tmp_path / "server"), scene)


def test_a_renewed_certificate_is_for_new_connections(tmp_path: Path) -> None:
    async def scene(address: str, operations: str) -> None:
        client = tls(tmp_path / "client")
        channel = GrpcNetwork(tls=client).connect(address)
        request = coordinator_pb2.ListGroupsRequest()
        await channel.call(LIST_GROUPS, request, timeout_ms=3_000)
        (tmp_path / "server" / "role.pem").write_text("nonsense")
        assert await asked(address, client) == 7, "what cannot be read leaves the former one"
        renewed = AUTHORITY.issue("role")
        renewed.write_combined(tmp_path / "server" / "role.pem")
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        context.load_cert_chain(tmp_path / "client" / "role.pem")
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert shown == ssl.PEM_cert_to_DER_cert(renewed.certificate_pem)
        writer.close()
        await channel.call(LIST_GROUPS, request, timeout_ms=3_000)
        await channel.close()

    served(tls(tmp_path / "server"), scene)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({TRUSTSTORE: "/ca.pem"}, f"{TRUSTSTORE} is given without {KEYSTORE}"),
        ({KEYSTORE: "/nowhere"}, f"{KEYSTORE}: /nowhere cannot be read"),
        ({KEYSTORE: "good"}, f"{TRUSTSTORE} is missing"),
        ({KEYSTORE: "good", TRUSTSTORE: "/gone"}, f"{TRUSTSTORE}: /gone cannot be read"),
        ({KEYSTORE: "good", "kshare.rpc.ssl.keystore.type": "JKS"}, "kshare.rpc.ssl.keystore.type is JKS"),
        ({"kshare.rpc.ssl.endpoint.identification.algorithm": "no"}, "Invalid value no"),
    ],
)
def test_what_is_refused(tmp_path: Path, texts: dict[str, str], problem: str) -> None:
    good = str(AUTHORITY.issue("role").write_combined(tmp_path / "good.pem"))
    with pytest.raises(InvalidConfig, match=problem):
        exchange_tls(process_configs({name: good if text == "good" else text for name, text in texts.items()})[0])


def test_commands_find_the_certificates_by_the_variables_of_the_roles(tmp_path: Path) -> None:
    assert exchange_tls_of_variables({}) is None
    keystore = AUTHORITY.issue("role").write_combined(tmp_path / "role.pem")
    (tmp_path / "public").write_text(f"{TRUSTSTORE}={AUTHORITY.write(tmp_path / 'ca.pem')}\nnum.partitions=3\n")
    (tmp_path / "secret").write_text(f"{KEYSTORE}={keystore}\n")
    variables = {"KSHARE_CONFIG": str(tmp_path / "public"), "KSHARE_CONFIG_SECRET": str(tmp_path / "secret")}
    assert exchange_tls_of_variables(variables) is not None
    with pytest.raises(OSError):
        exchange_tls_of_variables({"KSHARE_CONFIG": "/nowhere"})


@pytest.mark.parametrize(
    ("roles", "required", "is_allowed"),
    [
        (["gateway"], "false", True),
        (["leader"], "false", False),
        (["leader", "gateway"], "true", True),
        (["nobody"], "false", False),
        ([], "false", True),
        ([], "true", False),
    ],
)
def test_a_certificate_allows_the_calls_of_its_roles(
    tmp_path: Path, roles: list[str], required: str, is_allowed: bool
) -> None:
    """ListGroups is for gateways."""
    client = AUTHORITY.issue("role", uris=[f"kshare://role/{role}" for role in roles])

    async def scene(address: str, operations: str) -> None:
        if is_allowed:
            assert await asked(address, tls(tmp_path / "client", client)) == 7
            return
        with pytest.raises(
            CallFailed, match="Coordinator/ListGroups may be called by gateway; the caller's certificate"
        ):
            await asked(address, tls(tmp_path / "client", client))

    served(tls(tmp_path / "server", roles_required=required), scene)


@pytest.mark.parametrize("is_its_own", [True, False])
def test_a_node_registers_as_what_its_certificate_is_for(tmp_path: Path, is_its_own: bool) -> None:
    """A leader that watched the catalog as a gateway would be shown the SCRAM credentials."""
    role = coordinator_pb2.ROLE_LEADER if is_its_own else coordinator_pb2.ROLE_GATEWAY
    requests: dict[Method[Any, Any], Any] = {
        methods.REGISTER_NODE: coordinator_pb2.RegisterNodeRequest(node=coordinator_pb2.Node(role=role)),
        methods.DEREGISTER_NODE: coordinator_pb2.DeregisterNodeRequest(role=role),
        methods.WATCH_CATALOG: coordinator_pb2.WatchCatalogRequest(role=role),
    }

    def answers(method: Method[Any, Any]) -> Any:
        async def answer(request: object, payload: memoryview) -> Any:
            return method.response_type()

        return answer

    async def run() -> None:
        network = GrpcNetwork(tls=tls(tmp_path / "server"))
        handlers: dict[Method[Any, Any], Any] = {method: answers(method) for method in requests}
        server = await network.serve("127.0.0.1:0", [Service("Coordinator", handlers)])
        client = tls(tmp_path / "client", AUTHORITY.issue("role", uris=["kshare://role/leader"]))
        channel = GrpcNetwork(tls=client).connect(server.address)
        try:
            for method, request in requests.items():
                refused = pytest.raises(CallFailed, match="names role gateway; the caller's certificate is for leader")
                with nullcontext() if is_its_own else refused:
                    await channel.call(method, request, timeout_ms=3_000)
        finally:
            await channel.close()
            await server.stop(0)

    asyncio.run(run())


def test_only_leaders_write_share_state_and_only_administrators_and_coordinators_change_placement() -> None:
    """Gateways write it for Kafka's brokers, with ClusterAction."""
    expected: dict[Method[Any, Any], set[str]] = {
        methods.WRITE_SHARE_GROUP_STATE: {"leader", "gateway"},
        methods.TRUNCATE_SHARE_GROUP_STATE: {"leader"},
        methods.TRANSFER_STATE_PARTITION: {"share_coordinator"},
        methods.MOVE_PARTITIONS: {"administrator"},
        methods.GIVE_UP_NODE: {"administrator"},
        methods.DROP_SHARE_PARTITIONS: {"coordinator"},
        methods.WRITE_TXN_MARKERS: {"coordinator", "gateway"},
        methods.ALTER_ACLS: {"gateway"},
    }
    assert {method: set(method.callers) for method in expected} == expected
    every = [each for each in vars(methods).values() if isinstance(each, Method)]
    assert all(method.callers and set(method.callers) <= EVERY_ROLE for method in every)


AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


@pytest.mark.parametrize(
    ("texts", "is_refused"), [({}, False), (AUTHORIZER, True), ({**AUTHORIZER, KEYSTORE: "/keys/role.pem"}, False)]
)
def test_an_authorizer_needs_roles_that_know_each_other(texts: dict[str, str], is_refused: bool) -> None:
    configs = process_configs(texts)[0]
    assert needs_known_roles(configs) is is_refused
    assert needs_known_roles(configs, has_users=True) is (KEYSTORE not in texts)
    with pytest.raises(InvalidConfig, match=r"authorizer\.class\.name is set without") if is_refused else nullcontext():
        check_roles_are_known(configs)


@pytest.mark.parametrize("required", ["true", "false"])
def test_roles_that_are_required_need_a_keystore(required: str) -> None:
    configs = process_configs({"kshare.rpc.ssl.roles.required": required})[0]
    is_required = required == "true"
    assert needs_known_roles(configs) is is_required, "kshare up makes certificates"
    with pytest.raises(InvalidConfig, match="no caller's role is known") if is_required else nullcontext():
        check_roles_are_known(configs)


SASL_AT_CLUSTER = {"kshare.engine": "kafka", "kshare.upstream.security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("texts", "is_needed"),
    [
        (SASL_AT_CLUSTER, True),
        ({**SASL_AT_CLUSTER, KEYSTORE: "/keys/role.pem"}, False),
        ({**SASL_AT_CLUSTER, "kshare.upstream.security.protocol": "SSL"}, False),
    ],
)
def test_users_of_an_existing_cluster_need_roles_that_know_each_other(texts: dict[str, str], is_needed: bool) -> None:
    """Its ACLs hold for clients, and the roles' ports ask for none."""
    configs = process_configs(texts)[0]
    assert needs_known_roles(configs) is is_needed
    check_roles_are_known(configs)


def test_an_authority_that_was_stored_signs_as_before(tmp_path: Path) -> None:
    """Roles with certificates of the new and the stored one know each other."""
    authority = RoleAuthority.create()
    (tmp_path / "ca.pem").write_text(authority.pair.certificate_pem)
    contexts = []
    for number, signer in enumerate((authority, RoleAuthority.of(authority.pair))):
        issued = signer.issue(["leader"], names=["localhost"], addresses=["127.0.0.1"])
        keystore = tmp_path / f"{number}.pem"
        keystore.write_text(issued.certificate_pem + issued.key_pem)
        texts = {KEYSTORE: str(keystore), TRUSTSTORE: str(tmp_path / "ca.pem")}
        tls = exchange_tls(process_configs(texts)[0])
        assert tls is not None
        contexts.append(tls)
    names = peer_names(client=contexts[0].client, server=contexts[1].server)
    assert ("URI", "kshare://role/leader") in names


def peer_names(*, client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[tuple[str, str], ...]:
    """The names of the client's certificate as the server sees them after a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    found = sides[1].getpeercert()
    assert found is not None
    return found["subjectAltName"]  # type: ignore[return-value]
