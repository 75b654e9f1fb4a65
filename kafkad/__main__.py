"""The entry point of `python -m kafkad` and of the script `kafkad`.

Until a command installs its own handlers, SIGINT ends the process at once. Python's KeyboardInterrupt could
get lost, because it is ignored inside finalizers and import callbacks, and a start is mostly imports.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise our parent ignores SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from kafkad.cli.main import main

if __name__ == "__main__":
    main()
