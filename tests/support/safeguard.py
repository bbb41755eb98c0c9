"""The declaration of one line of the product that keeps a promise."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Safeguard:
    """One line of the product that keeps a promise, how to switch it off, and the test that must notice."""

    promise: str
    file: str  # relative to the repository
    old: str  # occurs in the file exactly once
    new: str
    test: str  # name of a test function in the module that declares this
    environment: dict[str, str] = field(default_factory=dict, hash=False)  # a seed that finds it, a larger count
