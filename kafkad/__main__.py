"""`python -m kafkad`, and the script `kafkad`.

Until a command has handlers of its own, SIGINT ends the process at once. The KeyboardInterrupt that Python
would raise is lost inside a finalizer or a callback of an import, and a start is mostly imports.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it was ignored when we began
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from kafkad.cli.main import main

if __name__ == "__main__":
    main()
