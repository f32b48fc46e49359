"""The gRPC client of etcd: several endpoints, TLS, and etcd's own authentication."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kshare_coordinator.metadata.etcd.grpc_etcd import GrpcEtcd, changes_of, error_of
from kshare_coordinator.metadata.etcd.port import EtcdCompacted, EtcdError, EtcdRefused, EtcdUnavailable, Put, Removal
from kshare_coordinator.metadata.etcd.settings import EtcdSettings
from kshare_rpc.generated.etcd import rpc_pb2 as pb
from support.metadata.etcd_backends import allowed_s, real_etcd

NOBODY = "127.0.0.1:1"
TIME_LIMIT_MS = 500


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scene(), 30)

    asyncio.run(main())


async def put(etcd: GrpcEtcd, value: bytes) -> int:
    return (await etcd.transact([], [Put(b"k", value)])).revision


async def put_at_last(etcd: GrpcEtcd, value: bytes) -> int:
    """As the store does: again until somebody is there."""
    while True:
        try:
            return await put(etcd, value)
        except EtcdUnavailable:
            await asyncio.sleep(0.01)


def test_a_dead_endpoint_costs_one_call() -> None:
    with real_etcd() as server:

        async def scene() -> None:
            etcd = GrpcEtcd(EtcdSettings(endpoints=(NOBODY, server.endpoint)), time_limit_ms=TIME_LIMIT_MS)
            with pytest.raises(EtcdUnavailable, match=NOBODY):
                await put(etcd, b"1")
            for _ in range(3):
                await put(etcd, b"2")
            await etcd.close()

        run(scene)


def test_calls_and_watches_continue_at_another_endpoint_when_one_stalls() -> None:
    with real_etcd() as first, real_etcd() as second:

        async def scene() -> None:
            etcd = GrpcEtcd(EtcdSettings(endpoints=(first.endpoint, second.endpoint)), time_limit_ms=TIME_LIMIT_MS)
            revision = await put(etcd, b"1")
            async with aclosing(etcd.watch(b"k", b"l", revision)) as changes:
                await anext(changes)
                first.pause()
                began_at = asyncio.get_running_loop().time()
                with pytest.raises(EtcdUnavailable, match="does not respond"):
                    await anext(changes)
                took_s = asyncio.get_running_loop().time() - began_at
                assert took_s < allowed_s(3 * TIME_LIMIT_MS / 1000, since=began_at)
            revision = await put(etcd, b"2")
            async with aclosing(etcd.watch(b"k", b"l", revision)) as changes:
                assert len((await anext(changes)).events) == 1
            second.kill()
            first.resume()
            assert await put_at_last(etcd, b"3") > 0
            await etcd.close()

        run(scene)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def certificate(folder: Path, name: str, extension: str) -> None:
    """name.pem and name.key, signed by ca.pem."""
    openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    openssl(folder, "req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr")
    (folder / f"{name}.ext").write_text(extension)
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext"]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *sign, "-out", f"{name}.pem")


def test_tls_with_a_certificate_of_its_own() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
        openssl(folder, "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=ca", "-days", "2", "-out", "ca.pem")
        certificate(folder, "server", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth")
        certificate(folder, "client", "extendedKeyUsage=clientAuth")
        arguments = (
            f"--cert-file={folder / 'server.pem'}",
            f"--key-file={folder / 'server.key'}",
            f"--trusted-ca-file={folder / 'ca.pem'}",
            "--client-cert-auth",
        )
        ca, pem, key = ((folder / file).read_bytes() for file in ("ca.pem", "client.pem", "client.key"))
        with real_etcd(*arguments) as server:

            async def scene() -> None:
                endpoints = (server.endpoint,)
                known = EtcdSettings(endpoints=endpoints, ca=ca, certificate=pem, key=key)
                etcd = GrpcEtcd(known, time_limit_ms=TIME_LIMIT_MS)
                assert await put(etcd, b"1") == 2
                await etcd.close()
                for unknown in (EtcdSettings(endpoints=endpoints, ca=ca), EtcdSettings(endpoints=endpoints)):
                    etcd = GrpcEtcd(unknown, time_limit_ms=TIME_LIMIT_MS)
                    with pytest.raises(EtcdUnavailable):
                        await put(etcd, b"2")
                    await etcd.close()

            run(scene)


async def administer(endpoint: str, method: str, *texts: str) -> None:
    """A call of etcd's Auth service whose request is texts in fields 1 and 2, as AuthenticateRequest is."""
    name, other = (*texts, "", "")[:2]
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/etcdserverpb.Auth/{method}", None, None
        )
        await call(pb.AuthenticateRequest(name=name, password=other).SerializeToString(), timeout=5)


def test_username_and_password() -> None:
    with real_etcd("--auth-token=simple") as server:

        async def scene() -> None:
            await administer(server.endpoint, "UserAdd", "root", "secret")
            await administer(server.endpoint, "RoleAdd", "root")
            await administer(server.endpoint, "UserGrantRole", "root", "root")
            await administer(server.endpoint, "AuthEnable")
            known = EtcdSettings(endpoints=(server.endpoint,), username="root", password="secret")
            etcd = GrpcEtcd(known, time_limit_ms=2_000)
            first = await put(etcd, b"1")
            lease = await etcd.grant(2_000)
            assert await etcd.keep_alive(lease.id)
            server.restart()  # tokens are in etcd's memory
            assert await put_at_last(etcd, b"2") > first
            assert await etcd.keep_alive(lease.id)
            async with aclosing(etcd.watch(b"k", b"l", first)) as changes:
                assert (await anext(changes)).events
            await etcd.close()
            for settings in (
                EtcdSettings(endpoints=(server.endpoint,), username="root", password="wrong"),
                EtcdSettings(endpoints=(server.endpoint,)),
            ):
                etcd = GrpcEtcd(settings, time_limit_ms=2_000)
                with pytest.raises(EtcdRefused, match=server.endpoint):
                    await put(etcd, b"3")
                with pytest.raises(EtcdError, match=r"user name is empty|authentication failed"):
                    async with aclosing(etcd.watch(b"k", b"l", first)) as changes:
                        await anext(changes)
                await etcd.close()

        run(scene)


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", EtcdUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", EtcdUnavailable),
        (grpc.StatusCode.CANCELLED, "", EtcdUnavailable),
        (grpc.StatusCode.UNKNOWN, "raft: stopped", EtcdUnavailable),
        (grpc.StatusCode.INTERNAL, "", EtcdUnavailable),
        (grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", EtcdCompacted),
        (grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", EtcdRefused),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", EtcdRefused),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", EtcdRefused),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", EtcdRefused),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", EtcdRefused),
    ],
)
def test_what_a_status_means(code: grpc.StatusCode, text: str, meaning: type[EtcdError]) -> None:
    """Only what etcd surely did not do is refused; all else may have been done."""
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
    assert type(error_of(error, "host:1")) is meaning


def test_what_a_watch_is_told() -> None:
    header = pb.ResponseHeader(revision=9)
    put_event = pb.Event(kv=pb.KeyValue(key=b"a", value=b"1", create_revision=3, mod_revision=4, version=2, lease=5))
    delete = pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=b"b", mod_revision=6))
    changes = changes_of(pb.WatchResponse(header=header, events=[put_event, delete]), "host:1")
    assert changes is not None
    assert (changes.revision, changes.events[1]) == (6, Removal(b"b", 6))
    assert changes_of(pb.WatchResponse(header=header, created=True), "host:1") is None
    assert changes_of(pb.WatchResponse(header=header, watch_id=-1), "host:1") is None, "says only that etcd lives"
    progress = changes_of(pb.WatchResponse(header=header), "host:1")
    assert progress is not None
    assert (progress.revision, list(progress.events)) == (9, [])
    with pytest.raises(EtcdCompacted, match="7"):
        changes_of(pb.WatchResponse(header=header, canceled=True, compact_revision=7), "host:1")
    with pytest.raises(EtcdUnavailable, match="no leader"):
        changes_of(pb.WatchResponse(header=header, canceled=True, cancel_reason="etcdserver: no leader"), "host:1")
