"""Which images are built under which version; nothing is built and no daemon is needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
