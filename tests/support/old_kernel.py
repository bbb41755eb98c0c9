"""Run a command as on a kernel before Linux 6.15: `python -m tests.support.old_kernel COMMAND …`.

A seccomp filter answers the ioctl PIDFD_GET_INFO with ENOTTY, as a kernel does that does not know it. All processes
that the command starts inherit the filter, daemons included.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

from chiplog_schemas.process.exit_status import PIDFD_GET_INFO

_IOCTL = {"x86_64": 16, "aarch64": 29}[platform.machine()]
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K of linux/filter.h
_NUMBER_AT, _REQUEST_AT = 0, 24  # in struct seccomp_data: nr, the lower half of args[1]


def forget_pidfd_info() -> None:
    """Install the filter in this process, for good."""
    program = [
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_IF_EQUAL, 0, 3, _IOCTL),
        (_LOAD, 0, 0, _REQUEST_AT),
        (_JUMP_IF_EQUAL, 0, 1, PIDFD_GET_INFO),
        (_RETURN, 0, 0, _ERRNO | errno.ENOTTY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    packed = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    instructions = ctypes.create_string_buffer(packed, len(packed))
    filter = struct.pack("<H6xQ", len(program), ctypes.addressof(instructions))  # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter, 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter can be installed")


if __name__ == "__main__":
    forget_pidfd_info()
    os.execvp(sys.argv[1], sys.argv[1:])
