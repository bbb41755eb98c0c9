"""The addresses `chiplog://`, `chiplog:///DIR` and `chiplog://HOST:PORT`, and those of a run's artifacts."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SCHEME = "chiplog"
_FORMS = "chiplog://, chiplog:///DIR or chiplog://HOST:PORT"
_OPTIONS = {"strict": ("0", "1"), "runs": ("launch", "process")}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store records and reads; neither directory nor collector: as the variables say."""

    directory: str | None = None
    collector: str | None = None  # tcp://HOST:PORT
    is_strict: bool = False  # raise what MLflow raises; else each is one line
    has_run_per_process: bool = False

    @property
    def place(self) -> str:
        """The address as one word, for the address of an artifact."""
        return quote(self.directory, safe="") if self.directory else (self.collector or "").removeprefix("tcp://")


def parse_address(uri: str) -> Address:
    """Parse the URI of a tracking store. Raises ValueError with one line."""
    parts = urlsplit(uri)
    if not uri.lower().startswith(f"{SCHEME}://"):
        raise ValueError(f"{uri!r:.200} is not an address; write {_FORMS}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if value not in _OPTIONS.get(name, ()):
            known = ", ".join(f"{option}={word}" for option, words in _OPTIONS.items() for word in words)
            raise ValueError(f"{uri!r:.200}: the option {name}={value} is not known; give one of {known}")
    settings = options.get("strict") == "1", options.get("runs") == "process"
    path = unquote(parts.path)
    if not parts.netloc:
        return Address(_directory(path) if path.strip("/") else None, None, *settings)
    if path.strip("/") or not _has_port(parts.netloc):
        raise ValueError(f"{uri!r:.200} is not an address; write {_FORMS}")
    return Address(None, f"tcp://{parts.netloc}", *settings)


def _directory(path: str) -> str:
    home = path.lstrip("/")
    return str(Path(home).expanduser()) if home.startswith("~") else path


def _has_port(netloc: str) -> bool:
    host, _, port = netloc.rpartition(":")
    return bool(host) and port.isdigit()


def artifact_uri(address: Address, *parts: str) -> str:
    """Return the address of artifacts: chiplog://PLACE/PART/…, with the place of the store as its host."""
    return f"{SCHEME}://{address.place}/{'/'.join(quote(part, safe='') for part in parts)}/artifacts"


def parse_artifact_uri(uri: str) -> tuple[Address, list[str]]:
    """Return the store of an artifact address, and the parts of its path. Raises ValueError with one line."""
    parts = urlsplit(uri)
    if parts.scheme != SCHEME:
        raise ValueError(f"{uri!r:.200} is not an address of artifacts; its scheme is {SCHEME}")
    place = parts.netloc
    if place and not _has_port(place):
        address = Address(directory=unquote(place))
    else:
        address = Address(collector=f"tcp://{place}" if place else None)
    return address, [unquote(part) for part in parts.path.split("/") if part]
