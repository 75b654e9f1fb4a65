"""Builds kafkad: every kafkad/_native/*/*.pyx is one extension; compiler directives stand here, once.

Environment:
  KAFKAD_ONLY=codec,batch   build just these extensions (while working on them)
  KAFKAD_DEBUG=1            -O0 -g, bounds checks on
  KAFKAD_SANITIZE=1         with AddressSanitizer and UndefinedBehaviorSanitizer: see tools/sanitize.py
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).parent
NATIVE = HERE / "kafkad" / "_native"
DEBUG = os.environ.get("KAFKAD_DEBUG") == "1"
ONLY = {name for name in os.environ.get("KAFKAD_ONLY", "").split(",") if name}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": DEBUG,
    "embedsignature": True,
    "auto_pickle": False,
}
COMPILE = ["-O0", "-g"] if DEBUG else ["-O2", "-g1", "-fno-strict-aliasing"]
LINK = []
if os.environ.get("KAFKAD_SANITIZE") == "1":
    LINK = ["-fsanitize=address,undefined"]
    COMPILE = ["-O1", "-g1", "-fno-strict-aliasing", "-fno-omit-frame-pointer", *LINK]

extensions = [
    Extension(
        f"kafkad._native.{path.parent.name}.{path.stem}",
        [str(path.relative_to(HERE))],
        include_dirs=sorted(
            {str(path.parent.relative_to(HERE)) for path in NATIVE.glob("*/*.pxd")}
        ),  # no __pycache__
        define_macros=[("_GNU_SOURCE", "1")],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
    )
    for path in sorted(NATIVE.glob("*/*.pyx"))
    if not ONLY or path.stem in ONLY
]

setup(
    ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=2, quiet=True),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
