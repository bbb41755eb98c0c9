"""Hooks of MkDocs: draw each Mermaid block as an inline SVG while the site is built, and add pictures of the page.

A page then needs neither JavaScript nor a network to show its diagrams. GitHub draws the same blocks by itself.
`<!-- imports: chiplog -->` becomes a drawing of what imports what in that package.
"""

import hashlib
import os
import re
import sys
from typing import Any

import mermaidx
from mkdocs.structure.files import File, Files

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # MkDocs loads this file alone
import docs_imports
import docs_pictures

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.path.join(ROOT, "build", "diagrams")  # drawing one takes about a second
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IMPORTS = re.compile(r"<!-- imports: (\w+) -->")
DRAWN_ID = "my-svg"  # the ID that Mermaid gives every drawing; two drawings on one page need different ones


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pictures of the page, if there are any."""
    for name in docs_pictures.names(ROOT):
        source = os.path.join(ROOT, docs_pictures.PICTURES, name)
        files.append(File.generated(config, f"{docs_pictures.FOLDER}/{name}", abs_src_path=source))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page's Markdown with each Mermaid block replaced by its drawing, and with the pictures of the page."""
    if docs_pictures.MARK in markdown:
        markdown = markdown.replace(docs_pictures.MARK, docs_pictures.page(ROOT))
    markdown = IMPORTS.sub(lambda found: f"```mermaid\n{docs_imports.drawing(found[1])}```", markdown)
    return BLOCK.sub(lambda found: f'<div class="diagram">{draw(found[1])}</div>', markdown)


def draw(source: str) -> str:
    """Return a diagram as SVG on one line. Raises what Mermaid raises for a source with an error."""
    name = hashlib.sha256(f"{mermaidx.__version__}\n{source}".encode()).hexdigest()[:16]
    path = os.path.join(CACHE, f"{name}.svg")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        pass
    svg = mermaidx.render(source).svg().replace(DRAWN_ID, f"diagram-{name}")
    svg = " ".join(svg.split())
    os.makedirs(CACHE, exist_ok=True)
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.write(svg)
    os.replace(f"{path}.{os.getpid()}", path)  # two builds at a time do not see half a drawing
    return svg
