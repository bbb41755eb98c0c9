"""What `init(resume=)` was given: which run it names, and what is odd about it. Pure but for one look at the disk."""

from pathlib import Path
from typing import Any

from chiplog.counting import was_here
from chiplog.values.metrics import Bad, shown

_NO_IDS = ("allow", "auto", "latest", "must", "never")  # what people try; as an ID each is as good as another
_REMEDY = "give the ID of the run, such as resume='gpt-1' (chiplog runs lists them)"


def asked_for(run_id: Any, resume: Any, remarks: list[Bad]) -> tuple[Any, Any]:
    """Return the run ID that is asked for, None when none is, and of these what is to be resumed."""
    if resume is True:
        remarks.append(Bad("bad_argument", "resume", f"resume=True names no run and is left out; {_REMEDY}"))
        return run_id, None
    if run_id and resume and str(run_id) != str(resume):
        what = f"resume={shown(resume)} and run_id={shown(run_id)} name two runs; the second is used"
        remarks.append(Bad("bad_argument", "resume", f"{what}, so leave out one of them"))
    return run_id or resume, resume


def note_unknown(directory: Path, run_id: str, remarks: list[Bad]) -> None:
    """Remark that nobody knows the run that is to go on: it may be a slip of the pen. directory: of the counts."""
    if run_id in _NO_IDS:
        remarks.append(Bad("resume_unknown", run_id, f"resume={run_id!r} is taken as the ID of a run; {_REMEDY}"))
    elif not was_here(directory, run_id):
        what = f"no run {run_id!r} is known on this node: unless it ran elsewhere, a new one begins"
        remarks.append(Bad("resume_unknown", run_id[:60], f"{what}; chiplog runs lists those there are"))
