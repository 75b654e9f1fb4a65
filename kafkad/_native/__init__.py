"""The loops in Cython, in five rooms: wire < shared < log < serving, and wire < values."""

import os
from importlib.machinery import EXTENSION_SUFFIXES


class NotBuilt(ImportError):
    """This is the source alone, as a fresh clone has it."""


_here = os.path.dirname(os.path.abspath(__file__))
if not any(os.path.exists(os.path.join(_here, "wire", "codec" + suffix)) for suffix in EXTENSION_SUFFIXES):
    raise NotBuilt(
        f"the native modules are not built in {_here}: run `pip install .`, or `pip install -e .` to work on"
        " the source; to use an installed kafkad, run Python from another directory"
    )
