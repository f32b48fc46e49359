"""The registration of APIs: mistakes are errors when handlers are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway import handlers
from kshare_gateway.dispatch import SERVED_APIS, is_supported, load_handlers
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ElementArrays, _check_fields, error_response, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.delete_groups import DeleteGroupsRequest
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.responses.delete_groups import DeleteGroupsResponse
from kshare_wire.generated.responses.heartbeat import HeartbeatResponse
from kshare_wire.generated.responses.leave_group import LeaveGroupResponse
from kshare_wire.messages import encode_response

OPEN = Access(open_to_all="a test")


def answer_heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse()


def test_a_module_without_an_api_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray/__init__.py").write_text("")
    (tmp_path / "stray/forgotten.py").write_text("async def handle(context, request): ...\n")
    monkeypatch.setattr(handlers, "__path__", [*handlers.__path__, str(tmp_path)])
    with pytest.raises(ImportError, match=r"kshare_gateway\.handlers\.stray\.forgotten: no API is registered"):
        load_handlers()


def test_an_api_is_registered_once_and_with_what_it_needs() -> None:
    heartbeat = SERVED_APIS[ApiKey.HEARTBEAT]
    with pytest.raises(ValueError, match="Heartbeat is registered twice"):
        serve(HeartbeatRequest, HeartbeatResponse, VersionRange(0, 4), access=OPEN, answer_now=answer_heartbeat)
    with pytest.raises(TypeError, match="access"):
        serve(HeartbeatRequest, HeartbeatResponse, VersionRange(0, 4), answer_now=answer_heartbeat)  # type: ignore[call-arg]
    assert SERVED_APIS[ApiKey.HEARTBEAT] is heartbeat


@pytest.mark.parametrize(
    ("api_key", "version", "answer"),
    [
        (ApiKey.HEARTBEAT, 0, "0010"),
        (ApiKey.HEARTBEAT, 4, "00 00000000 0010 00"),
        (ApiKey.END_TXN, 5, "00 00000000 0010 ffffffffffffffff ffff 00"),
        (ApiKey.SHARE_GROUP_HEARTBEAT, 1, "00 00000000 0010 05 74657874 00 00000000 00000000 ff 00"),
        (ApiKey.DESCRIBE_QUORUM, 2, "00 0010 05 74657874 01 01 00"),
    ],
)
def test_an_error_of_the_whole_request_is_its_code_and_its_text(api_key: ApiKey, version: int, answer: str) -> None:
    served = SERVED_APIS[api_key]
    assert served.failed is not None
    error = KafkaError(ErrorCode.NOT_COORDINATOR, "text")
    response = served.failed(cast(RequestContext, None), served.request(), error)
    assert response is not None
    encoded = b"".join(map(bytes, encode_response(response, version, 7)))
    assert encoded[8:].hex() == answer.replace(" ", "")


def test_an_api_that_tells_errors_by_element_says_which() -> None:
    with pytest.raises(ValueError, match="DeleteGroupsResponse has no error_code, so the handler needs failed"):
        error_response(DeleteGroupsResponse)


def test_the_classes_and_the_fields_of_a_row_belong_together() -> None:
    with pytest.raises(ValueError, match="LeaveGroupResponse is not the response to HeartbeatRequest"):
        serve(
            HeartbeatRequest,
            LeaveGroupResponse,
            VersionRange(0, 4),
            access=OPEN,
            answer_now=lambda *_: LeaveGroupResponse(),
        )
    _check_fields(ElementArrays(("groups_names",), "results"), DeleteGroupsRequest, DeleteGroupsResponse)
    with pytest.raises(ValueError, match="DeleteGroupsRequest has no field group_names"):
        _check_fields(ElementArrays(("group_names",), "results"), DeleteGroupsRequest, DeleteGroupsResponse)
    with pytest.raises(ValueError, match="DeleteGroupsResponse has no field result"):
        _check_fields(ElementArrays(("groups_names",), "result"), DeleteGroupsRequest, DeleteGroupsResponse)


def test_versions_outside_the_range_are_not_supported() -> None:
    assert [version for version in range(-1, 7) if is_supported(ApiKey.HEARTBEAT, version)] == [0, 1, 2, 3, 4]
    assert not is_supported(999, 0)


def test_names_are_kafkas() -> None:
    names = [SERVED_APIS[key].name for key in (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.SHARE_FETCH, ApiKey.DESCRIBE_ACLS)]
    assert names == ["AddOffsetsToTxn", "ShareFetch", "DescribeAcls"]
