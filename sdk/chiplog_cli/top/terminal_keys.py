"""Keys of a terminal, one at a time, without an echo."""

import contextlib
import os
import select
import termios
import tty
from collections.abc import Iterator

_READ_BYTES = 256  # a paste; more is read the next time
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
}
_SINGLE = {0x1B: "escape", 0x0D: "enter", 0x0A: "enter", 0x7F: "backspace", 0x08: "backspace", 0x04: "end of input"}


@contextlib.contextmanager
def unbuffered(descriptor: int) -> Iterator[None]:
    """Let a terminal deliver each key at once and show none; restore its modes at the end. Ctrl-C stays a signal."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_keys(descriptor: int, wait_s: float) -> list[str]:
    """Return the keys that were pressed, after `wait_s` seconds at most: characters, and names such as `page up`."""
    if not select.select([descriptor], [], [], wait_s)[0]:
        return []
    data = os.read(descriptor, _READ_BYTES)
    return parse_keys(data) if data else ["end of input"]


def parse_keys(data: bytes) -> list[str]:
    """Return the keys in the bytes of a terminal. Unknown sequences and characters are left out."""
    keys = []
    while data:
        for sequence, name in _SEQUENCES.items():
            if data.startswith(sequence):
                keys.append(name)
                data = data[len(sequence) :]
                break
        else:
            if data[:2] in (b"\x1b[", b"\x1bO"):
                end = next((at for at in range(2, len(data)) if 0x40 <= data[at] <= 0x7E), len(data) - 1)
                data = data[end + 1 :]
            elif data[0] in _SINGLE:
                keys.append(_SINGLE[data[0]])
                data = data[1:]
            else:
                size = 1 if not 0xC0 <= data[0] < 0xF8 else 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
                text = data[:size].decode(errors="ignore")
                keys += [text] if text.isprintable() and text else []
                data = data[size:]
    return keys
