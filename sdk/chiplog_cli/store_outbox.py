"""What waits at a collector for its store, from the files of its outbox: commands read it without the collector."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chiplog_schemas.paths import Paths


@dataclass(frozen=True, slots=True)
class StoreOutbox:
    """The outbox of a collector.

    Attributes:
        url: The store.
        n_pieces: Pieces that wait.
        n_bytes: Their bytes.
        lag_s: How long the oldest one has waited.
        trouble: Why nothing is published; empty if it is.
    """

    url: str
    n_pieces: int
    n_bytes: int
    lag_s: float
    trouble: str

    @property
    def line(self) -> str:
        """Return a line for people."""
        waits = f"waiting: {self.n_pieces:,} pieces, {self.n_bytes:,} bytes, the oldest for {self.lag_s:.0f} s"
        text = f"{self.url}, {waits if self.n_pieces else 'nothing waits'}"
        return f"{text}; {self.trouble}" if self.trouble else text


def store_outbox(where: Paths) -> StoreOutbox | None:
    """Return the outbox of a directory's collector; None if that has never published."""
    published, outage = _read(where.store / "published.json"), _read(where.store / "outage.json")
    if not isinstance(published.get("url"), str):
        return None
    n_bytes, cut_at = 0, []
    for piece in sorted((where.store / "pieces").glob("[0-9]*")):
        try:
            n_bytes += sum(path.stat().st_size for path in piece.iterdir())
            cut_at.append((piece / "piece.json").stat().st_mtime)
        except OSError:  # published since
            continue
    trouble = ""
    if published.get("is_foreign"):
        trouble = "nothing is published: the directory was restored or copied; see chiplog rebuild"
    elif outage and not outage.get("is_over"):
        trouble = str(outage.get("text"))
    lag_s = max(0.0, time.time() - min(cut_at)) if cut_at else 0.0
    return StoreOutbox(published["url"], len(cut_at), n_bytes, lag_s, trouble)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
