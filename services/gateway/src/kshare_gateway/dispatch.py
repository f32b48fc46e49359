"""All APIs that the gateway serves: the modules below `kshare_gateway.handlers` are loaded, and register themselves.

A module that registers nothing is an error, at the start of a gateway and in `make check`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from kshare_gateway import handlers
from kshare_gateway.served_apis import REGISTERED, ServedApi
from kshare_wire.generated.api_keys import ApiKey


def load_handlers() -> Mapping[ApiKey, ServedApi]:
    """Loads all handlers; ImportError for a module without an API."""
    modules = []
    for feature in pkgutil.iter_modules(handlers.__path__, f"{handlers.__name__}."):
        folder = importlib.import_module(feature.name)
        modules += [module.name for module in pkgutil.iter_modules(folder.__path__, f"{feature.name}.")]
    for module in modules:
        importlib.import_module(module)
    without = set(modules) - {served.module for served in REGISTERED.values()}
    if without:
        names = ", ".join(sorted(without))
        raise ImportError(f"{names}: no API is registered; add a row with kshare_gateway.served_apis.serve")
    return MappingProxyType(REGISTERED)


SERVED_APIS = load_handlers()


def is_supported(api_key: int, version: int) -> bool:
    served = SERVED_APIS.get(api_key)  # type: ignore[call-overload]
    return served is not None and served.versions.minimum <= version <= served.versions.maximum
