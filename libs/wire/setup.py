"""Builds the C extension of kshare_wire; everything else is in pyproject.toml."""

from __future__ import annotations

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildWithAdvice(build_ext):
    """Says what to install where there is no C compiler."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            raise SystemExit(
                f"kshare's record reader (kshare_wire/_records.c) could not be compiled: {error}\n"
                "It needs a C compiler and Python's header files: on Debian `apt install gcc libc6-dev python3-dev`, "
                "on macOS `xcode-select --install`. The container images have it compiled."
            ) from error


setup(
    ext_modules=[
        Extension(
            "kshare_wire._records",
            ["src/kshare_wire/_records.c"],
            extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra"],
        )
    ],
    cmdclass={"build_ext": BuildWithAdvice},
)
