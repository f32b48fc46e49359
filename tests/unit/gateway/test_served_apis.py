"""The registration of APIs: mistakes are errors when handlers are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kshare_gateway import handlers
from kshare_gateway.dispatch import SERVED_APIS, is_supported, load_handlers
from kshare_gateway.served_apis import serve
from kshare_wire.api_versions import ApiKey, VersionRange


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
        serve(ApiKey.HEARTBEAT, VersionRange(0, 4), handle=heartbeat.handle, failed=heartbeat.failed)
    assert SERVED_APIS[ApiKey.HEARTBEAT] is heartbeat


def test_versions_outside_the_range_are_not_supported() -> None:
    assert [version for version in range(-1, 7) if is_supported(ApiKey.HEARTBEAT, version)] == [0, 1, 2, 3, 4]
    assert not is_supported(999, 0)


def test_names_are_kafkas() -> None:
    names = [SERVED_APIS[key].name for key in (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.SHARE_FETCH, ApiKey.DESCRIBE_ACLS)]
    assert names == ["AddOffsetsToTxn", "ShareFetch", "DescribeAcls"]
