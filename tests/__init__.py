"""The tests keep compiled modules also where PYTHONDONTWRITEBYTECODE is set: they start kafkad some thousand
times, and each of these processes, and of pytest's, would compile all that it imports.
"""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
