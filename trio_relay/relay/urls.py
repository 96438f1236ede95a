"""Origins of URLs, as browsers write them."""

from __future__ import annotations

from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(url: str | None) -> str | None:
    """`scheme://host[:port]` of a URL, lower case and without a default port; None if it has none."""
    try:
        parts = urlsplit(url or "")
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    origin = f"{parts.scheme}://{host}"
    return origin if port in (None, DEFAULT_PORTS.get(parts.scheme)) else f"{origin}:{port}"
