"""A server of S3 on this host: SeaweedFS, one process, with one bucket."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.waiting import WAIT_S

BUCKET = "lake"
_KEY, _SECRET = "key", "secret"
_IDENTITY = {
    "name": "tests",
    "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
    "actions": [f"{action}:{BUCKET}" for action in ("Read", "Write", "List", "Tagging")],
}


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[dict[str, str]]:
    """Serve a bucket; yield the variables by which clients find it."""
    weed = Path(sys.executable).with_name("weed")
    port = first = free_ports(8)
    names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    names += ("filer.port", "filer.port.grpc")
    ports = [f"-{name}={first + at}" for at, name in enumerate(names)]
    master = f"127.0.0.1:{first + 2}.{first + 3}"
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [_IDENTITY]}))
    (directory / "data").mkdir()
    command = [
        str(weed),
        "server",
        "-ip=127.0.0.1",
        f"-dir={directory / 'data'}",
        "-s3",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",  # fixed ports, which two servers cannot have
        "-s3.port.lance=0",
        *ports,
    ]
    with (directory / "weed.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            _await_answer(f"http://127.0.0.1:{port}/")
            request = f"s3.bucket.create -name {BUCKET}\n".encode()
            subprocess.run([str(weed), "shell", f"-master={master}"], input=request, check=True, timeout=WAIT_S)
            yield {
                "AWS_ACCESS_KEY_ID": _KEY,
                "AWS_SECRET_ACCESS_KEY": _SECRET,
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ALLOW_HTTP": "true",
            }
        finally:
            process.kill()
            process.wait()


def _await_answer(url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return  # it wants a signature
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"{url} does not answer")
