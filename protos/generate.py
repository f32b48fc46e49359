"""Generates the Python stubs of protos/ into libs/rpc; `--check` only says whether they are up to date.

.venv/bin/python protos/generate.py [--check]
"""

from __future__ import annotations

import filecmp
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "libs/rpc/src/kshare_rpc/generated"
FOLDERS = ("kshare/v1", "etcd")
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
    return [path.relative_to(directory) for path in written]


def stubs(directory: Path) -> list[Path]:
    """All stubs below `directory`."""
    return sorted(path for folder in FOLDERS for path in (directory / folder).glob("*_pb2.py*"))


def main() -> int:
    if "--check" not in sys.argv[1:]:
        for path in generate(TARGET):
            print(TARGET / path)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        paths = generate(fresh)
        present = {path.relative_to(TARGET) for path in stubs(TARGET)}
        stale = [p for p in paths if p not in present or not filecmp.cmp(fresh / p, TARGET / p, shallow=False)]
        stale += sorted(present - set(paths))
    for path in stale:
        print(f"not what protos/ generates: {TARGET / path}; run `make protos`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
