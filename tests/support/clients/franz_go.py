"""franz-go's own test suite, unchanged, against kshare: `make test-franz-go`.

Its module comes through Go's module proxy and has its tests with it: consumer groups of both protocols, transactions,
share groups, regular expressions, its administrative calls. It takes about two minutes, most of them compiling, and
needs Go. KGO_TEST_RECORDS sets how many records its ETL tests move; GO_TEST has further options of the test program,
such as "-test.run Share -test.v".
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.clusters.kshare_cluster import KshareCluster
from support.environment.installation import Missing, alone, cache_folder

MODULE = "github.com/twmb/franz-go@v1.22.2"
RECORDS = "20000"
TIME_LIMIT = "600s"


def test_program() -> Path:
    """The compiled tests of its package kgo, and where they expect to run."""
    go = shutil.which("go")
    if go is None:
        raise Missing("these tests need Go on the PATH (https://go.dev/dl)")
    folder = cache_folder() / MODULE.replace("/", "_")
    program = folder / "kgo.test"
    with alone("franz-go"):
        if not program.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            described = subprocess.run(
                [go, "mod", "download", "-json", MODULE], cwd=folder, check=True, capture_output=True
            )
            shutil.copytree(json.loads(described.stdout)["Dir"], folder / "source")
            subprocess.run(["chmod", "-R", "u+w", str(folder / "source")], check=True)
            command = [go, "test", "-c", "-o", str(program), "./pkg/kgo"]
            subprocess.run(command, cwd=folder / "source", check=True)
    return program


def main() -> int:
    program = test_program()
    with tempfile.TemporaryDirectory() as folder, KshareCluster(Path(folder)) as cluster:
        environment = {
            "KGO_TEST_RECORDS": RECORDS,
            **os.environ,
            "KGO_SEEDS": cluster.bootstrap,
            "KGO_TEST_RF": "1",
        }
        command = [str(program), f"-test.timeout={TIME_LIMIT}", *shlex.split(os.environ.get("GO_TEST", ""))]
        source = program.parent / "source" / "pkg" / "kgo"
        return subprocess.run(command, cwd=source, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
