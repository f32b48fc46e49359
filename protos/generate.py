"""Generates the Python stubs of protos/, and the table of RPCs, into libs/rpc; `--check` only compares them.

.venv/bin/python protos/generate.py [--check]
"""

from __future__ import annotations

import filecmp
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    MethodOptions,
)
from google.protobuf.unknown_fields import UnknownFieldSet

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "libs/rpc/src/kshare_rpc/generated"
FOLDERS = ("kshare/v1", "etcd")
METHODS = Path("methods.py")
HAS_LONG_ANSWER = 50000
"""The number of the option in options.proto."""
CALLERS = 50001
IS_AUDITED = 50002
MAY_WAIT_LONG = 50003
"""The numbers of the other options."""
# protoc writes imports by the file's path; the stubs live inside kshare_rpc so that they cannot clash with `kshare`.
IMPORT = re.compile(r"^(\s*)(from|import) kshare\.v1\b", re.MULTILINE)


def generate(directory: Path) -> list[Path]:
    """Writes the stubs below `directory`; returns their paths relative to it."""
    sources = sorted(str(path) for folder in FOLDERS for path in (ROOT / folder).glob("*.proto"))
    binaries = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={ROOT}",
            f"--plugin=protoc-gen-mypy={binaries / 'protoc-gen-mypy'}",
            f"--python_out={directory}",
            f"--mypy_out=quiet:{directory}",
            f"--descriptor_set_out={directory / 'descriptors'}",
            *sources,
        ],
        check=True,
    )
    written = stubs(directory)
    for path in written:
        text = path.read_text()
        text = IMPORT.sub(r"\1\2 kshare_rpc.generated.kshare.v1", text)
        text = re.sub(r"(?<![\w.])kshare\.v1\.(\w+_pb2)", r"kshare_rpc.generated.kshare.v1.\1", text)
        path.write_text(text)
    descriptors = directory / "descriptors"
    (directory / METHODS).write_text(methods(FileDescriptorSet.FromString(descriptors.read_bytes())))
    descriptors.unlink()
    return [path.relative_to(directory) for path in [*written, directory / METHODS]]


def stubs(directory: Path) -> list[Path]:
    """All stubs below `directory`."""
    return sorted(path for folder in FOLDERS for path in (directory / folder).glob("*_pb2.py*"))


def methods(descriptors: FileDescriptorSet) -> str:
    """The module with a `Method` for each unary RPC between the roles."""
    files = [file for file in descriptors.file if file.package == "kshare.v1" and file.service]
    messages = {
        f".{file.package}.{message.name}": (_module(file), message)
        for file in descriptors.file
        for message in file.message_type
    }
    lines = ['"""All RPC methods between the roles, by name. Generated from protos/ by `make protos`."""', ""]
    lines += ["from __future__ import annotations", ""]
    used = {
        messages[kind][0] for file in files for each in _unary(file) for kind in (each.input_type, each.output_type)
    }
    lines += [f"from kshare_rpc.generated.kshare.v1 import {module}" for module in sorted(used)]
    lines += ["from kshare_rpc.network import Method", ""]
    lines += [f'{_constant(service.name)} = "{service.name}"' for file in files for service in file.service]
    for file in files:
        lines.append("")
        for each in _unary(file):
            request, response = messages[each.input_type], messages[each.output_type]
            arguments = [_constant(file.service[0].name), f'"{each.name}"']
            arguments += [f"{module}.{message.name}" for module, message in (request, response)]
            arguments += [f"{flag}=True" for flag in _flags(each.options, request[1], response[1])]
            arguments.append(f"callers={_callers(each)}")
            lines.append(f"{_constant(each.name)} = Method({', '.join(arguments)})")
    return "\n".join(lines) + "\n"


def _unary(file: FileDescriptorProto) -> Iterator[MethodDescriptorProto]:
    return (each for service in file.service for each in service.method if not each.client_streaming)


def _module(file: FileDescriptorProto) -> str:
    return f"{Path(file.name).stem}_pb2"


def _constant(name: str) -> str:
    """SHARE_FETCH for ShareFetch."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def _flags(options: MethodOptions, *messages: DescriptorProto) -> Iterator[str]:
    if any(field.name == "payload" for message in messages for field in message.field):
        yield "has_payload"
    unknown = UnknownFieldSet(options)
    fields = [unknown[index] for index in range(len(unknown))]
    if any(field.field_number == HAS_LONG_ANSWER and field.data for field in fields):
        yield "has_long_answer"
    if any(field.field_number == IS_AUDITED and field.data for field in fields):
        yield "is_audited"
    if any(field.field_number == MAY_WAIT_LONG and field.data for field in fields):
        yield "may_wait_long"
    if options.idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN:
        yield "is_repeatable"


def _callers(method: MethodDescriptorProto) -> str:
    """The tuple of the roles that may call it; ValueError if the protos name none."""
    unknown = UnknownFieldSet(method.options)
    fields = [unknown[index] for index in range(len(unknown))]
    roles = [field.data.decode() for field in fields if field.field_number == CALLERS]
    if not roles:
        raise ValueError(f"rpc {method.name} needs an option (callers), which says which roles may call it")
    return repr(tuple(roles)).replace("'", '"')


def main() -> int:
    if "--check" not in sys.argv[1:]:
        for path in generate(TARGET):
            print(TARGET / path)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        paths = generate(fresh)
        present = {path.relative_to(TARGET) for path in [*stubs(TARGET), TARGET / METHODS] if path.exists()}
        stale = [p for p in paths if p not in present or not filecmp.cmp(fresh / p, TARGET / p, shallow=False)]
        stale += sorted(present - set(paths))
    for path in stale:
        print(f"not what protos/ generates: {TARGET / path}; run `make protos`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
