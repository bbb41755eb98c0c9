"""The files that a browser loads."""

import gzip
from pathlib import Path

from chiplog.page.static_files import STATIC
from tests.support.page_client import serving

PATH = "/static/js/main.js"


def test_a_file_is_compressed_if_the_browser_takes_it_and_sent_once(tmp_path: Path) -> None:
    text = Path(STATIC, "js/main.js").read_bytes()
    with serving(tmp_path) as client:
        client.sign_in()
        plain, packed = client.ask(PATH), client.ask(PATH, Accept_Encoding="gzip")
        again = client.ask(PATH, Accept_Encoding="gzip", If_None_Match=packed.headers["etag"])
    assert (plain.body, gzip.decompress(packed.body)) == (text, text)
    assert packed.headers["content-type"].startswith("text/javascript")
    assert packed.headers["vary"].lower() == "accept-encoding"
    assert int(packed.headers["content-length"]) == len(packed.body) < len(text)
    assert (again.status, again.body) == (304, b"")
    for answer in (plain, packed, again):
        assert answer.headers["cache-control"] == "no-cache", "after an upgrade there are no old modules"
