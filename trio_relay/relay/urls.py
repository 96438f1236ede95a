"""Origins of URLs, as browsers write them."""

from __future__ import annotations

from urllib.parse import urlsplit


def origin_of(url: str | None) -> str | None:
    """`scheme://host[:port]` of a URL, lower case; None if it has none."""
    if not url:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.netloc}".lower() if parts.scheme and parts.netloc else None
