"""Files of the page, by the addresses that they have; nothing else is served from a disk."""

from __future__ import annotations

from importlib.resources import files

_SCRIPT = "text/javascript; charset=utf-8"
ASSETS = {  # address: name of the file and its type
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/page/{name}.js": (f"{name}.js", _SCRIPT) for name in ("page", "api", "dom", "inspect", "live", "products")},
}


def read_asset(name: str) -> bytes:
    """Content of a file of the page."""
    return (files("keepad.serve") / "page" / name).read_bytes()
