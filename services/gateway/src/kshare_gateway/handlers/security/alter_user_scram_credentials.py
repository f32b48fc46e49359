"""AlterUserScramCredentials (key 51), version 0: users of SCRAM, checked as in ScramControlManager of Kafka 4.3.1.

A request has salted passwords, from which the gateway derives what the catalog stores. A user has one result, and is
changed as a whole or not at all.
"""

from __future__ import annotations

from collections import Counter

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.security.sasl.scram import (
    LEAST_ITERATIONS,
    LEAST_SALT_BYTES,
    MOST_ITERATIONS,
    ScramType,
    check_user_name,
    credential_of_salted_password,
)
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from kshare_rpc.generated.methods import ALTER_USER_SCRAM_CREDENTIALS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kshare_wire.generated.responses.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

Alteration = pb.AlterUserScramCredentialsRequest.Alteration


async def handle(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    asked: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    times = Counter((each.name, each.mechanism) for each in asked)
    wanted: dict[str, list[Alteration]] = {}
    refused: dict[str, KafkaError] = {}
    for each in asked:
        alterations = wanted.setdefault(each.name, [])
        try:
            if times[each.name, each.mechanism] > 1:
                text = "A user credential cannot be altered twice in the same request"
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
            user = pb.ScramUser(name=_user_name(each.name), mechanism=_mechanism(each.mechanism))
            credential = None
            if isinstance(each, ScramCredentialUpsertion):
                check_user_name(each.name)
                credential = _credential(each)
            alterations.append(Alteration(user=user, credential=credential))
        except KafkaError as error:
            refused.setdefault(each.name, error)
    results = {name: _result(name, error.code, error.message) for name, error in refused.items()}
    allowed = [each for name, alterations in wanted.items() if name not in refused for each in alterations]
    if allowed:
        change = pb.AlterUserScramCredentialsRequest(alterations=allowed)
        answer = await change_catalog(context.gateway, ALTER_USER_SCRAM_CREDENTIALS, change)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message)
        await context.gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)
        for result in answer.results:
            results[result.user] = _result(result.user, result.error_code, result.error_message)
    return AlterUserScramCredentialsResponse(results=[results[name] for name in wanted])


def failed(
    context: RequestContext, request: AlterUserScramCredentialsRequest, error: KafkaError
) -> AlterUserScramCredentialsResponse:
    names = dict.fromkeys([*(each.name for each in request.deletions), *(each.name for each in request.upsertions)])
    return AlterUserScramCredentialsResponse(results=[_result(name, error.code, error.message) for name in names])


def _user_name(name: str) -> str:
    if not name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    return name


def _mechanism(number: int) -> int:
    if number not in (ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512):
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return number


def _credential(upsertion: ScramCredentialUpsertion) -> pb.ScramCredential:
    if upsertion.iterations < LEAST_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.iterations > MOST_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if len(upsertion.salt) < LEAST_SALT_BYTES:
        text = f"The salt has {len(upsertion.salt)} bytes; at least {LEAST_SALT_BYTES} are needed"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    return credential_of_salted_password(
        ScramType(upsertion.mechanism), bytes(upsertion.salt), bytes(upsertion.salted_password), upsertion.iterations
    )


def _result(name: str, code: int, message: str) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message or None)


serve(
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    VersionRange(0, 0),
    access=on_cluster(Operation.ALTER),
    handle=handle,
    failed=failed,
)
