"""Compiles every .pyx below src/holdfast. HOLDFAST_SANITIZE=1 adds the address sanitizer (`make fuzz`)."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

FLAGS = ["-O3", "-fno-plt", "-Wno-unused-function", "-Wno-unreachable-code"]
LINK: list[str] = []
if os.environ.get("HOLDFAST_SANITIZE"):
    FLAGS += ["-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,fuzzer-no-link"]
    LINK += ["-fsanitize=address,fuzzer-no-link", "-shared-libasan"]

SOURCE = Path("src")
# `make` installs without compiling, then compiles in place, in parallel and only what changed.
SOURCES = [] if os.environ.get("HOLDFAST_COMPILE") == "later" else sorted(SOURCE.rglob("*.pyx"))
extensions = [
    Extension(
        ".".join(path.relative_to(SOURCE).with_suffix("").parts),
        [str(path)],
        extra_compile_args=FLAGS,
        extra_link_args=LINK,
    )
    for path in SOURCES
]

setup(
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        build_dir="build/cython",
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "embedsignature": True,
        },
    )
)
