"""Handlers of ACLs, client quotas and SCRAM credentials; gateways call them for clients that they authorized."""

from __future__ import annotations

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands
from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from kshare_rpc.serving import serves


class SecurityHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core

    @serves(methods.ALTER_ACLS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def alter_acls(self, request: pb.AlterAclsRequest, payload: memoryview) -> pb.AlterAclsResponse:
        return await self._core.submit(commands.AlterAcls(request=request))

    @serves(methods.ALTER_CLIENT_QUOTAS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def alter_client_quotas(
        self, request: pb.AlterClientQuotasRequest, payload: memoryview
    ) -> pb.AlterClientQuotasResponse:
        return await self._core.submit(commands.AlterClientQuotas(request=request))

    @serves(methods.ALTER_USER_SCRAM_CREDENTIALS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def alter_user_scram_credentials(
        self, request: pb.AlterUserScramCredentialsRequest, payload: memoryview
    ) -> pb.AlterUserScramCredentialsResponse:
        return await self._core.submit(commands.AlterUserScramCredentials(request=request))
