"""The pictures that `make screenshots` takes, as a page of the site: each view of both runs.

They are too large to be kept beside the code. Without them the page says how to take them.
"""

import os

PICTURES = "build/screenshots"
MARK = "<!-- pictures of the page -->"
FOLDER = "assets/pictures"  # in the site
RUNS = {
    "64-ranks": "A run of 64 ranks: rank 11 reads its data slowly, and rank 40 fails",
    "demo": "The run of `make demo`",
}
MISSING = (
    "*This site was built without the pictures. `make demo`, `make screenshots` and `make docs` make it with them.*"
)


def names(root: str) -> list[str]:
    """Return the file names of all pictures."""
    folder = os.path.join(root, PICTURES)
    return sorted(name for name in os.listdir(folder) if name.endswith(".png")) if os.path.isdir(folder) else []


def page(root: str) -> str:
    """Return the Markdown of all pictures, a part for each run."""
    found = names(root)
    parts = []
    for run, title in RUNS.items():
        views = [name.removeprefix(f"{run}-").removesuffix(".png") for name in found if name.startswith(f"{run}-")]
        if views:
            parts.append(f"## {title}")
        parts += [f"### {view.capitalize()}\n\n![The view {view}](../{FOLDER}/{run}-{view}.png)" for view in views]
    return "\n\n".join(parts) or MISSING
