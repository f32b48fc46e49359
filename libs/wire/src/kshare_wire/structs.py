"""The base classes of Kafka's messages: `kshare_wire.generated.requests` and `responses` have a class for each struct.

A class has the fields of all versions of its API. A field that a version lacks shows its default when it is read, and
is left out when it is written, so handlers need no version checks for reading. Times are integers in milliseconds and
their names end in `_ms`; topic ids are 16 bytes; the records of a request are a memoryview of its frame, those of a
response the pieces that are written one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, Self, TypeVar, overload

from kshare_core.identifiers import TOPIC_ID_LENGTH

Buffer = bytes | bytearray | memoryview
ZERO_ID = bytes(TOPIC_ID_LENGTH)


class Struct:
    """A message or a struct within one."""

    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def replaced(self, **fields: object) -> Self:
        """A copy with other values in some fields."""
        return type(self)(**{name: getattr(self, name) for name in self.__slots__} | fields)


class Response(Struct):
    """A whole response."""

    __slots__: tuple[str, ...] = ()

    API_KEY: ClassVar[int]


AResponse_co = TypeVar("AResponse_co", bound=Response, covariant=True)


class Request(Struct, Generic[AResponse_co]):
    """A whole request, and the class of its response."""

    __slots__: tuple[str, ...] = ()

    API_KEY: ClassVar[int]
    RESPONSE: ClassVar[type[Response]]


AnElement = TypeVar("AnElement", bound=Struct)


class EncodedArray(Sequence[AnElement]):
    """An array of a response that is encoded already, of `length` elements; `data` is shared, never copied.

    It stands for its elements where a response is written. Its length is known; its elements are not, so reading one
    is a TypeError. `error_codes` are those other than NONE in its elements.
    """

    __slots__ = ("data", "error_codes", "length")

    def __init__(self, length: int, data: bytes, error_codes: Sequence[int] = ()) -> None:
        self.length = length
        self.data = data
        self.error_codes = error_codes

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, place: int) -> AnElement: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[AnElement]: ...
    def __getitem__(self, place: int | slice) -> AnElement | Sequence[AnElement]:
        raise TypeError("the elements of an encoded array cannot be read")

    def __iter__(self) -> Iterator[AnElement]:
        raise TypeError("the elements of an encoded array cannot be read")
