"""The entry point of `python -m kafkad` and of the script `kafkad`.

Until a command installs its own handlers, SIGINT ends the process at once. Python's KeyboardInterrupt could
get lost, because it is ignored inside finalizers and import callbacks, and a start is mostly imports.
"""

import gc
import os
import signal
import sys
from typing import NoReturn

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise our parent ignores SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from kafkad.cli import exits


def main() -> NoReturn:
    """Run the command. `serve` runs without click if its command line is plain."""
    if sys.argv[1:2] == ["serve"] and "_KAFKAD_COMPLETE" not in os.environ:
        exits.begin()
        from kafkad.cli.serving import plain, serve_node

        arguments = plain(sys.argv[2:], os.environ)
        if arguments is not None:
            gc.disable()  # what is imported stays; server.lifecycle enables it again
            try:
                serve_node(**arguments)
            except ImportError as trouble:
                exits.end_unless_built(trouble)
                raise
    from kafkad.cli.main import main as any_command

    any_command()


if __name__ == "__main__":
    main()
