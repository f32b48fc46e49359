"""The part of RocksDB's manifest that is needed here: families, their tables, and which logs are still needed.

An edit is a list of tagged fields (RocksDB's version_edit.h). Unknown tags with bit 13 may be skipped; any other
unknown tag makes the edit unreadable, as for RocksDB itself. Edits of one atomic group count together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT_CURSOR, _DELETED_FILE = 1, 2, 3, 4, 5, 6
_PREVIOUS_LOG, _MIN_LOG_TO_KEEP = 9, 10
_NEW_FILE_4 = 103
_FAMILY, _FAMILY_ADD, _FAMILY_DROP, _MAX_FAMILY, _ATOMIC_GROUP = 200, 201, 202, 203, 300
_SKIPPABLE = 1 << 13
_FILE_FIELDS_END = 1
_NUMBERS = (_NEXT_FILE, _PREVIOUS_LOG, _MAX_FAMILY)


class UnknownEdit(Exception):
    """The edit has a field that RocksDB 9 does not write."""


@dataclass(slots=True)
class Family:
    """A column family: its tables' sizes by number, and the first log with writes that are not in them."""

    name: str
    log_number: int = 0
    tables: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Edit:
    family_id: int = 0
    log_number: int | None = None
    last_sequence: int | None = None
    min_log_to_keep: int | None = None
    added_name: str | None = None
    is_drop: bool = False
    added: dict[int, int] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)
    remaining_in_group: int = 0


class Manifest:
    """The state after all edits; `apply` takes them in order."""

    def __init__(self) -> None:
        self.families: dict[int, Family] = {}
        self.last_sequence = 0
        self._min_log_to_keep = 0
        self._group: list[_Edit] = []

    @property
    def first_live_log(self) -> int:
        """The first log that is still needed; all writes of earlier logs are in tables."""
        unflushed = min((family.log_number for family in self.families.values()), default=0)
        return max(unflushed, self._min_log_to_keep)

    def apply(self, record: bytes) -> None:
        """Applies the next edit; UnknownEdit, or IndexError where it ends too early."""
        edit = _decode(record)
        self._group.append(edit)
        if edit.remaining_in_group:
            return
        for complete in self._group:
            self._apply(complete)
        self._group = []

    def _apply(self, edit: _Edit) -> None:
        if not self.families:
            self.families[0] = Family("default")
        if edit.added_name is not None:
            self.families[edit.family_id] = Family(edit.added_name)
        family = self.families.get(edit.family_id)
        if family is None:
            raise UnknownEdit(f"it refers to the unknown family {edit.family_id}")
        if edit.is_drop:
            del self.families[edit.family_id]
        family.log_number = max(family.log_number, edit.log_number or 0)
        for number in edit.deleted:
            family.tables.pop(number, None)
        family.tables.update(edit.added)
        self.last_sequence = max(self.last_sequence, edit.last_sequence or 0)
        self._min_log_to_keep = max(self._min_log_to_keep, edit.min_log_to_keep or 0)


def _decode(record: bytes) -> _Edit:
    edit = _Edit()
    fields = _Fields(record)
    while not fields.is_at_end:
        _decode_field(fields.number(), fields, edit)
    return edit


def _decode_field(tag: int, fields: _Fields, edit: _Edit) -> None:
    if tag in _NUMBERS:
        fields.number()
    elif tag == _NEW_FILE_4:
        _decode_file(fields, edit)
    elif tag == _DELETED_FILE:
        fields.number()  # the level
        edit.deleted.append(fields.number())
    elif tag == _COMPACT_CURSOR:
        fields.number()
        fields.text()
    elif tag == _FAMILY_ADD:
        edit.added_name = fields.text().decode(errors="replace")
    elif tag == _FAMILY_DROP:
        edit.is_drop = True
    elif tag == _COMPARATOR or tag & _SKIPPABLE:
        fields.text()
    else:
        _decode_number(tag, fields, edit)


def _decode_number(tag: int, fields: _Fields, edit: _Edit) -> None:
    if tag == _LOG_NUMBER:
        edit.log_number = fields.number()
    elif tag == _LAST_SEQUENCE:
        edit.last_sequence = fields.number()
    elif tag == _MIN_LOG_TO_KEEP:
        edit.min_log_to_keep = fields.number()
    elif tag == _FAMILY:
        edit.family_id = fields.number()
    elif tag == _ATOMIC_GROUP:
        edit.remaining_in_group = fields.number()
    else:
        raise UnknownEdit(f"tag {tag}")


def _decode_file(fields: _Fields, edit: _Edit) -> None:
    fields.number()  # the level
    number, size_bytes = fields.number(), fields.number()
    fields.text()  # the smallest key
    fields.text()  # the largest key
    fields.number()  # their sequence numbers
    fields.number()
    while fields.number() != _FILE_FIELDS_END:
        fields.text()
    edit.added[number] = size_bytes


class _Fields:
    """A reader of varints and length-prefixed texts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def is_at_end(self) -> bool:
        return self._place >= len(self._data)

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._place]
            self._place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> bytes:
        length = self.number()
        end = self._place + length
        if end > len(self._data):
            raise IndexError(f"a text of {length} bytes")
        found = self._data[self._place : end]
        self._place = end
        return found
