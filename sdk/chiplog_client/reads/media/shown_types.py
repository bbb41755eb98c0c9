"""Pure: which logged values a browser can display, and by which Content-Type."""

_IMAGES = {name: f"image/{name}" for name in ("png", "jpeg", "gif", "webp", "bmp")}
_SOUNDS = {"mp3": "mpeg", "oga": "ogg", "opus": "ogg", "m4a": "mp4"} | {
    name: name for name in ("wav", "ogg", "flac", "aac", "webm")
}
_VIDEOS = {name: f"video/{name}" for name in ("mp4", "webm", "ogg")}
# What browsers show, by kind and format. All else is a download. SVG, which may have scripts, is not among it.
_TYPES = {
    "image": _IMAGES,
    "mask": _IMAGES,
    "figure": _IMAGES,
    "audio": {name: f"audio/{word}" for name, word in _SOUNDS.items()},
    "video": _VIDEOS | {name: _IMAGES[name] for name in ("gif", "webp")},
    "html": {"html": "text/html; charset=utf-8"},
}


def shown_type(kind: str, form: str | None) -> str | None:
    """Return the Content-Type of a logged value that a browser can display; None if it can only be downloaded."""
    return _TYPES.get(kind, {}).get(form or "")
