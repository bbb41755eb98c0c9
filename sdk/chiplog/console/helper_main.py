"""The program that drains a rank's output: `python -P -S helper_main.py <socket> <path> …`.

helper_process.py starts it without site-packages and without `import chiplog`, which would cost each rank's helper
10 MB and a tenth of a second. The first line needs ZeroMQ and msgpack: it imports them from the given paths.
"""

import os
import signal
import sys
import types


def main() -> None:
    """Drain until the last writer has closed."""
    control = int(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # meant for the training, whose last output is still to come
    package = types.ModuleType("chiplog")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["chiplog"] = package
    sys.path += sys.argv[2:]
    from chiplog.console.helper import drain

    drain(control)


if __name__ == "__main__":
    main()
