"""Compiles every .pyx below src/holdfast. HOLDFAST_SANITIZE=1 adds the sanitizers (see `make fuzz`).

With HOLDFAST_WITHOUT_MODULES=1 nothing is compiled: `tools/prepare modules` has done that in place.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

FLAGS = [
    "-O3",
    "-g0",
    "-fno-plt",
    "-Wno-unused-function",
    "-Wno-unreachable-code",
    "-Wno-maybe-uninitialized",
]
if os.environ.get("HOLDFAST_SANITIZE"):
    CHECKS = "address,fuzzer-no-link,bounds,null,shift,signed-integer-overflow,vla-bound"
    FLAGS += ["-g", "-O1", "-fno-omit-frame-pointer", f"-fsanitize={CHECKS}", "-fno-sanitize-recover=all"]

SOURCE = Path("src")
extensions = (
    []
    if os.environ.get("HOLDFAST_WITHOUT_MODULES")
    else [
        Extension(
            ".".join(path.relative_to(SOURCE).with_suffix("").parts),
            [str(path)],
            extra_compile_args=FLAGS,
        )
        for path in sorted(SOURCE.rglob("*.pyx"))
    ]
)

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
