"""The files that a browser loads."""

import gzip
import re
from pathlib import Path

from chiplog_page.server.static_files import STATIC, compressed
from tests.support.page_client import serving

PATH = "/static/js/main.js"


def without_comments(text: bytes) -> bytes:
    """Return a module without indentation, with empty lines in place of comments that have lines of their own."""
    lines, is_inside = [], False
    for line in text.split(b"\n"):
        is_inside = is_inside or line.lstrip().startswith(b"/**")
        code, _, comment = line.lstrip(b" \t").partition(b" // ")
        is_late = not any(quote in comment for quote in b"\"'`")
        code = code.rstrip() if is_late else line.lstrip(b" \t")
        lines.append(b"" if is_inside or line.lstrip().startswith(b"//") else code)
        if is_inside and b"*/" in line:
            is_inside = False
            assert line.endswith(b"*/"), "code after a comment"
    return b"\n".join(lines)


def test_a_file_is_compressed_if_the_browser_takes_it_and_sent_once(tmp_path: Path) -> None:
    text = Path(STATIC, "js/main.js").read_bytes()
    with serving(tmp_path) as client:
        client.sign_in()
        plain, packed = client.ask(PATH), client.ask(PATH, Accept_Encoding="gzip")
        again = client.ask(PATH, Accept_Encoding="gzip", If_None_Match=packed.headers["etag"])
    assert (plain.body, gzip.decompress(packed.body)) == (text, without_comments(text))
    assert packed.headers["content-type"].startswith("text/javascript")
    assert packed.headers["vary"].lower() == "accept-encoding"
    assert int(packed.headers["content-length"]) == len(packed.body) < len(text)
    assert (again.status, again.body) == (304, b"")
    for answer in (plain, packed, again):
        assert answer.headers["cache-control"] == "no-cache", "after an upgrade there are no old modules"


def test_no_text_of_several_lines_has_indentation_which_modules_lose() -> None:
    for path in Path(STATIC, "js").rglob("*.js"):
        is_inside = False
        for number, line in enumerate(path.read_text().split("\n"), 1):
            assert not (is_inside and line.startswith((" ", "\t"))), f"{path}:{number}"
            assert not (is_inside and " // " in line), f"{path}:{number}"
            is_inside ^= line.count("`") % 2 == 1


def without_style_comments(text: bytes) -> bytes:
    """Return a style sheet without comments and needless spaces. No text in it has a comment's signs."""
    parts = text.split(b"/*")
    rest = parts[0] + b"".join(part.split(b"*/", 1)[1] for part in parts[1:])
    words = b" ".join(rest.split())
    for sign in (b"{", b"}", b";", b",", b":"):
        words = words.replace(sign + b" ", sign)
    return words.replace(b" {", b"{").replace(b" }", b"}")


def test_all_code_is_small_and_keeps_its_lines_but_for_comments() -> None:
    size = 0
    for path in [path for path in Path(STATIC).rglob("*") if path.suffix in (".js", ".css")]:
        packed = compressed(str(path), path.stat().st_mtime_ns)
        size += len(packed)
        text = path.read_bytes()
        strip = {".js": without_comments, ".css": without_style_comments}[path.suffix]
        assert gzip.decompress(packed) == (text if "vendor" in path.parts else strip(text)), path
    assert size <= 150_000, "JavaScript and CSS, as the server sends them"


def imports_of(module: Path) -> set[Path]:
    """Return the modules that load with a module: those that it imports, and what they import."""
    found, waiting = set[Path](), [module]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            names = re.findall(r'^(?:import|\}) .*?from "(.+)";$', each.read_text(), re.MULTILINE)
            waiting += [(each.parent / name).resolve() for name in names]
    return found


def test_the_page_names_the_modules_of_the_first_curves_so_that_none_waits_for_another() -> None:
    js = Path(STATIC, "js").resolve()
    needed = set[Path]().union(*(imports_of(js / name) for name in ("main.js", "views/run.js", "views/run/curves.js")))
    named = re.findall(r'href="static/js/(.+?)"', Path(STATIC, "index.html").read_text())
    assert {"main.js", *named} == {str(path.relative_to(js)) for path in needed}
