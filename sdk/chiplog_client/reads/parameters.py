"""Pure: what the readers of runs are asked for: bounds of steps, labels, names, errors of bad questions."""

from chiplog_client.results.result import QueryError

STEP_MIN, STEP_MAX = -(1 << 63), (1 << 63) - 1
# Part of a condition: `label` is one of the parameter `labels` of a query; any one if that is empty.
CHOSEN_LABELS = "(len($labels::VARCHAR[]) = 0 OR list_contains($labels::VARCHAR[], label))"


class BadRequestError(ValueError):
    """A request that cannot be answered as it is. The text is one line for people."""


def quoted_name(name: str) -> str:
    """Return a name as SQL has it: of a column that may have any characters."""
    return '"' + name.replace('"', '""') + '"'


def require_positive(name: str, number: int) -> None:
    """Raise QueryError if an argument of a public function is less than 1."""
    if number < 1:
        raise QueryError("refused", f"{name} is {number}; give 1 or more")
