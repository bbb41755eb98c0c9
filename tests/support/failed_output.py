"""The message about a process that ended badly: errors first, since a summary of tests shows the first line alone."""

import re

_OUTPUT_MAX = 12_000  # characters at the end
_ERRORS_MAX = 3  # in the first line: often that of one rank, and of another one that waited for it
_BEGINS = "Traceback (most recent call last):"
_ABORTED = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)  # by PYTHONFAULTHANDLER
_OF_TORCHRUN = "torch.distributed.elastic."  # it raises an error of its own about each rank that fails


def ended_with(exit_code: int | None, output: str) -> str:
    """Return the message: the last errors, the last traceback, and the end of the output. None: it has not ended."""
    end = "has not ended" if exit_code is None else f"exit code {exit_code}"
    tracebacks = [text for text in _tracebacks(output.splitlines()) if _OF_TORCHRUN not in text[-1]]
    errors = [text[-1] for text in tracebacks] or _ABORTED.findall(output)
    first = ": ".join([end, *filter(None, [" | ".join(errors[-_ERRORS_MAX:])])])
    return "\n".join([first, *(tracebacks[-1] if tracebacks else ()), "-- output --", output[-_OUTPUT_MAX:]])


def _tracebacks(lines: list[str]) -> list[list[str]]:
    """Return the lines of each traceback, of which the last one is the error. Lines of a rank may have a prefix."""
    found: list[list[str]] = []
    begun: dict[str, list[str]] = {}  # by prefix: those of two ranks may come in turns
    for line in lines:
        if line.endswith(_BEGINS):
            begun[line.removesuffix(_BEGINS)] = [line]
            continue
        for prefix in sorted(begun, key=len, reverse=True):
            if line.startswith(prefix):
                begun[prefix].append(line)
                if line[len(prefix) :].strip() and not line[len(prefix)].isspace():
                    found.append(begun.pop(prefix))
                break
    return found
