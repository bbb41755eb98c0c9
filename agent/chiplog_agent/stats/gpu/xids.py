"""What the codes of XIDs mean: the errors of a GPU that NVIDIA's driver reports.

Source of codes and texts: NVIDIA's catalog of XID errors, https://docs.nvidia.com/deploy/xid-errors/. The severities
are ours: `error` where the GPU or the job on it is lost, `warning` where someone has to look, `info` where no
action is needed.
"""

from typing import NamedTuple


class Xid(NamedTuple):
    """The meaning of a code. severity: the level of its event. advice: what to do."""

    text: str
    severity: str
    advice: str

    @property
    def is_fatal(self) -> bool:
        """Whether the GPU, its driver or its links failed, and not the application."""
        return self.severity == "error" and self.advice != _APPLICATION


_APPLICATION = "look for the fault in the application, then start it again"
_RESTART = "start the application again; if it returns on this GPU alone, reset the GPU"
_RESET = "drain the node and reset the GPU"
_FIRMWARE = "reset the GPU; if it returns, update the driver and ask the vendor"
_LINK = "reset the GPUs of this link; if it returns, have the link examined"
_RESET_SOON = "reset the GPU when it is idle"
_WATCH = "nothing now; ask the vendor if it returns often"

XIDS = {
    8: Xid("GPU stopped processing", "error", _RESTART),
    13: Xid("graphics engine exception", "error", _APPLICATION),
    31: Xid("GPU memory page fault", "error", _APPLICATION),
    32: Xid("invalid or corrupted push buffer stream", "error", _RESTART),
    38: Xid("driver firmware error", "error", _FIRMWARE),
    43: Xid("GPU stopped processing", "error", _APPLICATION),
    44: Xid("graphics engine fault during context switch", "error", _RESTART),
    45: Xid("preemptive cleanup, due to previous errors", "warning", "look for the XID before it, or the job's end"),
    46: Xid("GPU stopped processing", "error", _RESET),
    48: Xid("double bit ECC error", "error", _RESET),
    54: Xid("auxiliary power is not connected to the GPU board", "error", "connect the power cables"),
    61: Xid("internal micro-controller breakpoint or warning", "warning", _FIRMWARE),
    62: Xid("internal micro-controller halt", "error", _RESET),
    63: Xid("ECC page retirement or row remapping was recorded", "warning", _RESET_SOON),
    64: Xid("ECC page retirement or row remapping could not be recorded", "error", _RESET),
    68: Xid("video decoder exception", "error", _APPLICATION),
    69: Xid("graphics engine class error", "error", _RESTART),
    74: Xid("NVLink error", "error", _LINK),
    78: Xid("vGPU start error", "warning", "look at the driver of the virtual machine"),
    79: Xid("GPU has fallen off the bus", "error", "drain and restart the node; look at power, cooling and seat"),
    92: Xid("high rate of single bit ECC errors", "warning", _WATCH),
    93: Xid("non-fatal violation of the InfoROM's wear limit", "info", _WATCH),
    94: Xid("contained ECC error", "error", "start the application again, and reset the GPU when it is idle"),
    95: Xid("uncontained ECC error", "error", _RESET),
    109: Xid("context switch timeout", "error", _RESTART),
    110: Xid("security fault", "error", "restart the node; ask the vendor if it returns"),
    119: Xid("timeout of a call to the GPU's system processor (GSP)", "error", _FIRMWARE),
    120: Xid("error of the GPU's system processor (GSP)", "error", _FIRMWARE),
    121: Xid("link between chips (C2C) had an error", "warning", _RESET_SOON),
    122: Xid("flash of the board could not be read", "warning", _WATCH),
    123: Xid("flash of the board could not be written", "warning", _WATCH),
    124: Xid("flash of the board could not be erased", "warning", _WATCH),
    137: Xid("NVLink privilege error: a peer's access was refused", "error", _APPLICATION),
    140: Xid("unrecovered ECC error", "error", _RESET),
    143: Xid("GPU initialization failure", "error", _RESET),
    154: Xid("the GPU's recovery action has changed", "warning", "do what hw.gpu.recovery_action says"),
}
_CATALOG = "https://docs.nvidia.com/deploy/xid-errors/"


def xid_of(code: int) -> Xid:
    """Return the meaning of a code, also of one that the table lacks."""
    return XIDS.get(code) or Xid("not in chiplog's table", "warning", f"look it up: {_CATALOG}")
