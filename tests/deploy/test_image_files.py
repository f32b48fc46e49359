"""Which images are built under which version; nothing is built and no daemon is needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deploy" / "images"
STAGES_WITHOUT_AN_IMAGE = {"build", "run", "role"}


def matched(pattern: str, path: Path) -> str:
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{path} has no {pattern}"
    return found[1]


def test_every_image_of_the_dockerfile_is_built_for_each_platform() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (IMAGES / "Dockerfile").read_text(), re.MULTILINE))
    images = {stage for stage in stages - STAGES_WITHOUT_AN_IMAGE if not stage.startswith("build-")}
    listed = matched(r"image = \[(.*)\]", IMAGES / "docker-bake.hcl")
    assert set(re.findall(r'"([^"]+)"', listed)) == images >= {"all-in-one", "gateway"}


@pytest.mark.parametrize("page", ["deploy/README.md", "docs/quickstart.md"])
def test_a_document_builds_the_images_that_it_runs(page: str) -> None:
    """Lines of a block, in their order: no registry has kshare's images."""
    built: set[str] = set()
    found = 0
    for line in re.findall(r"^    (docker .*)$", (ROOT / page).read_text(), re.MULTILINE):
        built |= set(re.findall(r"docker build .* -t (\S+) \.$", line))
        for name in re.findall(r"docker run .*?(kshare/\S+)", line):
            found += 1
            assert name in built, f"{page}: {line}"
    assert found


def test_packages_images_and_chart_have_one_version() -> None:
    packages = {
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"]
        for path in (*ROOT.glob("services/*/pyproject.toml"), *ROOT.glob("libs/*/pyproject.toml"))
    }
    assert packages == {
        matched(r"^appVersion: (\S+)$", ROOT / "helm" / "kshare" / "Chart.yaml"),
        matched(r'variable "VERSION" { default = "(.*)" }', IMAGES / "docker-bake.hcl"),
        matched(r"^ARG VERSION=(\S+)$", IMAGES / "Dockerfile"),
    }
