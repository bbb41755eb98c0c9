"""What the codes of XIDs mean, how severe they are and what to do: the errors of a GPU that NVIDIA's driver reports.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog", https://docs.nvidia.com/deploy/xid-errors/, as of October
2025 (codes to 172). A row has the catalog's two resolution buckets, the immediate and the investigatory action, and
chiplog's own short text. Other sources: the catalog for Volta and older GPUs, for 61 and 122 to 125; the names in
nverror.h of NVIDIA's open kernel modules 595.45, for 173 and later.

The severity follows from the actions, and the alert XidFatal counts the errors:

- `error`: the immediate action resets the GPU, restarts the machine, or is work on the hardware. By chiplog's own
  exception also the codes of `_FATAL_BY_NAME`. Never a code of `APPLICATION_CODES`.
- `info`: the catalog asks for nothing, or the XID only accompanies another one.
- `warning`: everything else, such as a lost application or an old driver.
"""

from collections.abc import Iterable
from typing import NamedTuple

# The GPU is healthy after these: NVIDIA's k8s-device-plugin ignores them (internal/rm/health.go, August 2026). For 109
# the catalog has RESET_GPU; the driver sets hw.gpu.recovery_action where that is needed.
APPLICATION_CODES = frozenset((13, 31, 43, 45, 68, 109))

CATALOG = "https://docs.nvidia.com/deploy/xid-errors/"
_NONE = ""  # the catalog has no action
_SEE_OTHER = "sympathetic"  # it accompanies another XID, which has the action

_IMMEDIATE = {  # what each immediate action asks for
    _NONE: "do what hw.gpu.recovery_action says; contact the vendor",
    "IGNORE": "no action now",
    "RESTART_APP": "restart the application",
    "RESET_GPU": "drain the node and reset the GPU",
    "RESTART_VM": "drain and restart the virtual machine",
    "RESTART_BM": "drain and restart the node",
    "CHECK_MECHANICALS": "drain the node and check the GPU's power and seat",
    "CHECK_UVM": "check for other XIDs",
    "UPDATE_SWFW": "update the driver and firmware",
    "CONTACT_SUPPORT": "contact the vendor",
    "WORKFLOW_XID_45": "check for an earlier XID",
    "WORKFLOW_XID_48": "drain the node and reset the GPU",
    "WORKFLOW_NVLINK_ERR": "drain the node and reset the GPUs of this link",
    "WORKFLOW_NVLINK5_ERR": "do what hw.gpu.recovery_action says; if that is 0, restart the application",
    "XID_154": "do what hw.gpu.recovery_action says",
}
_INVESTIGATORY = {  # and each investigatory action
    _NONE: "",
    _SEE_OTHER: "",
    "IGNORE": "",
    "UPDATE_SWFW": "",
    "CONTACT_SUPPORT": "contact the vendor if it recurs",
    "CHECK_APP/CUDA": "debug it if it recurs",
    "WORKFLOW_XID_13": "debug it, or contact the vendor if only one GPU has it",
    "WORKFLOW_XID_31": "debug it, or contact the vendor if only one GPU has it",
    "WORKFLOW_XID_48": "contact the vendor if it recurs",
    "INVESTIGATE_SW": "update the driver if it recurs",
    "INVESTIGATE_SW_USER": "find out what took the link down",
    "INVESTIGATE_LINK_SI": "check the link if it recurs",
    "WORKFLOW_NVLINK5_ERR": "contact the vendor if it recurs",
    "SYMPATHETIC_REPORT_SOLO": "contact the vendor if it recurs alone",
    "XID_137_FLOW": "debug the application",
}
_ADVICE = {  # chiplog's advice where the two actions say too little
    32: "restart the application; check the PCIe link if it recurs",
    37: "no action now; debug the application if it recurs",
    43: "restart the application; debug it if it recurs",
    45: "check for an earlier XID; without one, the application was ended",
    63: "reset the GPU when it is idle",
    74: "drain the node and reset the GPUs of this link; check for a failed GPU at its other end",
    79: "drain and restart the node; check power, cooling and seat if it recurs",
    94: "restart the application; reset the GPU when it is idle",
    109: "restart the application; reset the GPU if hw.gpu.recovery_action is not 0, or if it recurs",
    110: "drain the node and reset the GPU; power-cycle the node if it recurs",
    121: "reset the GPU when it is idle",
    137: "restart the application; debug it if it recurs",
    162: "no action",
    163: "check the cooling; if the GPU is cool, reload the driver",
    164: "plan to replace the GPU if you need power smoothing",
    165: "replace the GPU if you need power smoothing",
    168: "turn ECC on, or restart the node",
    171: "see XID 48",
    172: "see XID 48",
}
_RESETS = frozenset(
    ("RESET_GPU", "RESTART_VM", "RESTART_BM", "CHECK_MECHANICALS", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR")
)
_FATAL_BY_NAME = frozenset((167, 173))  # NVIDIA names them fatal, and has no action for them
_WAITS = frozenset((_NONE, "IGNORE", "WORKFLOW_XID_45", "XID_154"))


class Xid(NamedTuple):
    """The meaning of a code. severity: the level of its event. advice: what to do."""

    text: str
    severity: str
    advice: str

    @property
    def is_fatal(self) -> bool:
        """Whether the GPU, its links or its node need a reset or repair."""
        return self.severity == "error"


def _severity(code: int, action: str, follow_up: str) -> str:
    if (action in _RESETS and code not in APPLICATION_CODES) or code in _FATAL_BY_NAME:
        return "error"
    return "info" if action in _WAITS and follow_up in ("IGNORE", _SEE_OTHER) else "warning"


# Codes, text, immediate and investigatory action.
_ROWS: tuple[tuple[int | Iterable[int], str, str, str], ...] = (
    (8, "GPU stopped processing: a channel was idle for too long", "RESTART_APP", "CONTACT_SUPPORT"),
    (11, "invalid or corrupted push buffer stream", "RESTART_APP", "CHECK_APP/CUDA"),
    (13, "graphics engine exception, such as an access out of bounds", "RESTART_APP", "WORKFLOW_XID_13"),
    (25, "invalid or illegal push buffer stream", "RESTART_APP", "CHECK_APP/CUDA"),
    (31, "GPU memory page fault: access to an illegal address", "RESTART_APP", "WORKFLOW_XID_31"),
    (32, "invalid or corrupted push buffer stream", "RESTART_APP", "CHECK_APP/CUDA"),
    (37, "driver firmware error: unknown method", "IGNORE", "CHECK_APP/CUDA"),
    (38, "driver firmware error: watchdog", "IGNORE", "CONTACT_SUPPORT"),
    ((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error", "RESTART_APP", "CONTACT_SUPPORT"),
    (43, "GPU stopped processing: a fault of the application ended it", "IGNORE", "CONTACT_SUPPORT"),
    (44, "graphics engine fault during context switch", "IGNORE", "CONTACT_SUPPORT"),
    (45, "preemptive cleanup", "WORKFLOW_XID_45", _SEE_OTHER),
    (46, "GPU stopped processing: timeout", "RESET_GPU", "CONTACT_SUPPORT"),
    (48, "double bit ECC error", "WORKFLOW_XID_48", "WORKFLOW_XID_48"),
    (54, "auxiliary power is not connected to the GPU board", "CHECK_MECHANICALS", "CONTACT_SUPPORT"),
    (60, "video processor exception", "RESTART_APP", "INVESTIGATE_SW"),
    (61, "internal micro-controller breakpoint or warning", "CONTACT_SUPPORT", _NONE),
    (62, "internal micro-controller halt", "RESET_GPU", "CONTACT_SUPPORT"),
    (63, "memory row remapping or page retirement was recorded", "IGNORE", "IGNORE"),
    (64, "memory row remapping or page retirement failed", "RESET_GPU", "CONTACT_SUPPORT"),
    (66, "illegal access by the driver: register", "IGNORE", "INVESTIGATE_SW"),
    (67, "illegal access by the driver", "IGNORE", "CONTACT_SUPPORT"),
    ((68, 83, 84, 88, 89, 96, 97, 98), "video decoder error", "RESTART_APP", "CONTACT_SUPPORT"),
    (69, "graphics engine class error", "RESTART_APP", "CHECK_APP/CUDA"),
    (74, "NVLink error", "WORKFLOW_NVLINK_ERR", "CONTACT_SUPPORT"),
    (78, "vGPU start error", "UPDATE_SWFW", "UPDATE_SWFW"),
    (79, "GPU has fallen off the bus", "RESTART_BM", "CONTACT_SUPPORT"),
    (80, "corrupted data sent to the GPU", "RESTART_APP", "CHECK_APP/CUDA"),
    ((82, *range(99, 106)), "image decoder error", "RESTART_APP", "CONTACT_SUPPORT"),
    ((86, 139), "optical flow engine error", "RESTART_APP", "CONTACT_SUPPORT"),
    (92, "high rate of single bit ECC errors", "IGNORE", "CONTACT_SUPPORT"),
    (93, "InfoROM was not written: its wear limit is exceeded", "IGNORE", "CONTACT_SUPPORT"),
    (94, "contained memory error", "RESTART_APP", _SEE_OTHER),
    (95, "uncontained memory error", "RESET_GPU", _SEE_OTHER),
    ((106, 107), "test message of the management bus", "IGNORE", "IGNORE"),
    (109, "context switch timeout", "RESET_GPU", "CONTACT_SUPPORT"),
    (110, "security fault", "RESET_GPU", "INVESTIGATE_SW"),
    (119, "timeout of a call to the GPU's system processor (GSP)", "RESET_GPU", "INVESTIGATE_SW"),
    (120, "error of the GPU's system processor (GSP)", "RESET_GPU", "INVESTIGATE_SW"),
    (121, "corrected error of the link between chips (C2C)", "IGNORE", "CONTACT_SUPPORT"),
    (122, "flash of the board could not be read", "CONTACT_SUPPORT", _NONE),
    (123, "flash of the board could not be written", "CONTACT_SUPPORT", _NONE),
    (124, "flash of the board could not be erased", "CONTACT_SUPPORT", _NONE),
    (125, "file system of the InfoROM had an error", "CONTACT_SUPPORT", _NONE),
    (136, "NVLink could not be trained", "RESET_GPU", "INVESTIGATE_LINK_SI"),
    (137, "NVLink privilege error: an access to a peer was refused", "IGNORE", "XID_137_FLOW"),
    (140, "unrecovered ECC error", "RESET_GPU", "CONTACT_SUPPORT"),
    (141, "CUDA fast path error", "IGNORE", "CONTACT_SUPPORT"),
    (142, "video encoder error", "CONTACT_SUPPORT", _NONE),
    (143, "GPU initialization error", "RESET_GPU", "CONTACT_SUPPORT"),
    (range(144, 150), "NVLink 5 error", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (150, "NVLink 5 error: management", "RESET_GPU", "CONTACT_SUPPORT"),  # by all rows of its decoding
    (151, "key rotation error", "RESTART_VM", "CONTACT_SUPPORT"),
    ((152, 153), "deep learning accelerator error", "IGNORE", "CONTACT_SUPPORT"),
    (154, "the GPU's recovery action has changed", "XID_154", _SEE_OTHER),
    (155, "NVLink was taken down by software", "RESET_GPU", "INVESTIGATE_SW_USER"),
    (156, "a resource of the GPU was retired", "RESET_GPU", "IGNORE"),
    (157, "a resource of the GPU could not be retired", "IGNORE", "CONTACT_SUPPORT"),
    (158, "fatal timeout of the GPU", "RESET_GPU", "CONTACT_SUPPORT"),
    (159, "error of the coherent link to the CPU (CHI)", "CHECK_UVM", "SYMPATHETIC_REPORT_SOLO"),
    (160, "a channel of the GPU was retired", "IGNORE", "INVESTIGATE_SW"),
    (161, "a channel of the GPU could not be retired", "IGNORE", "INVESTIGATE_SW"),
    (162, "power smoothing is on again", _NONE, "IGNORE"),
    (163, "power smoothing is off", _NONE, _NONE),
    (164, "power smoothing is near the end of its lifetime", _NONE, _NONE),
    (165, "power smoothing is at the end of its lifetime", _NONE, _NONE),
    ((166, 170), "NVLink error under confidential computing", _NONE, _NONE),
    (167, "fatal timeout of PCIe", _NONE, _NONE),
    (168, "less GPU memory: errors in its protected region", _NONE, _NONE),
    (169, "security micro-controller halt", _NONE, _NONE),
    (171, "the error of XID 48 is in the GPU's DRAM", _NONE, _SEE_OTHER),
    (172, "the error of XID 48 is in the GPU's SRAM", _NONE, _SEE_OTHER),
    (173, "fatal failure of the link between chips (C2C)", _NONE, _NONE),
    (175, "memory subsystem error", _NONE, _NONE),
    (176, "PCIe correctable errors", _NONE, _NONE),
)


def _table() -> dict[int, Xid]:
    table = {}
    for codes, text, action, follow_up in _ROWS:
        advice = "; ".join(part for part in (_IMMEDIATE[action], _INVESTIGATORY[follow_up]) if part)
        for code in (codes,) if isinstance(codes, int) else codes:
            table[code] = Xid(text, _severity(code, action, follow_up), _ADVICE.get(code, advice))
    return dict(sorted(table.items()))


XIDS = _table()


def xid_of(code: int) -> Xid:
    """Return the meaning of a code, also of one that the table lacks."""
    return XIDS.get(code) or Xid("not in chiplog's table", "warning", f"look it up: {CATALOG}")
