"""The settings of one relay, their defaults, and the only checks of their values.

Knows nothing of argv, of files or of the network: `cli.py` reads those and calls the `parse_*` functions
here, so a bad value has the same words wherever it comes from.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from trio_relay.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9333
DISCOVERY_PORTS = range(9333, 9349)
"""Ports a browser extension looks at (9333 to 9348, both included); a seed number of the protocol."""

DEFAULT_ORIGINS = ("chrome-extension://*",)
DEFAULT_INVOKE_TIMEOUT_MS = 65_000
MAX_INVOKE_TIMEOUT_MS = 2_147_483_647
"""The longest timer a browser can set (2^31 - 1 ms); longer deadlines would fire at once in a page."""

DEFAULT_MAX_PAYLOAD = 10_000_000
MIN_MAX_PAYLOAD = 1_024
MAX_MAX_PAYLOAD = 1_073_741_824

OWN_EXTENSION = "dfmjanjmbbmleoinmjfjkbplomkiniel"
"""The id of our browser extension, which follows from the `key` of its manifest."""

LOOPBACK_NAMES = frozenset({"localhost", "::1", "127.0.0.1"})

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\*|[^\s/?#@\\*,]+)\Z")


@dataclass(frozen=True, kw_only=True)
class RelayConfig:
    """Everything a relay needs to know before it starts.

    Args:
        host: Address to bind. Loopback unless you add a trust boundary of your own.
        port: TCP port of the browser's WebSocket; 0 lets the kernel choose (for embedders and tests).
        fixed_port: Whether `port` is the only one to try. If not, it is where the search begins.
        allowed_origins: Origins that may register tools: `*`, `<scheme>://*`, `null`, or exact.
        label, workspace, relay_id: Names reported to browsers during discovery.
        invoke_timeout: Seconds a tab has to answer a call; None waits for ever.
        max_payload: Largest WebSocket message accepted from a browser, in bytes.
        bridge_extensions: Extension ids that may carry ports of other extensions; what they say of a sender is
            believed.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    fixed_port: bool = False
    allowed_origins: tuple[str, ...] = field(default=DEFAULT_ORIGINS)
    label: str | None = None
    workspace: str | None = None
    relay_id: str | None = None
    invoke_timeout: float | None = DEFAULT_INVOKE_TIMEOUT_MS / 1000
    max_payload: int = DEFAULT_MAX_PAYLOAD
    bridge_extensions: tuple[str, ...] = (OWN_EXTENSION,)

    @property
    def is_loopback(self) -> bool:
        """True when only programs on this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() in LOOPBACK_NAMES

    def bridge_of(self, origin: str | None) -> str | None:
        """The extension with this `Origin` header, if it may carry ports of others; else None."""
        scheme, _, extension = (origin or "").partition("://")
        return extension if scheme == "chrome-extension" and extension in self.bridge_extensions else None


def parse_int(option: str, text: str, low: int, high: int) -> int:
    """Read a whole number between `low` and `high`, both included.

    Raises:
        ConfigError: naming the option and the range.
    """
    # int() would also take "1_0", " 9 " and other digits than ASCII's.
    if re.fullmatch(r"[0-9]{1,20}", text) is None or not low <= int(text) <= high:
        raise ConfigError(f"{option} takes a whole number from {low} to {high}, not {text!r}")
    return int(text)


def parse_port(text: str) -> int:
    return parse_int("--port", text, 1, 65_535)


def parse_invoke_timeout(text: str) -> float | None:
    """Milliseconds as text, or `none`; returns seconds, or None for no limit."""
    if text.lower() == "none":
        return None
    try:
        return parse_int("--invoke-timeout", text, 1, MAX_INVOKE_TIMEOUT_MS) / 1000
    except ConfigError:
        raise ConfigError(
            f"--invoke-timeout takes milliseconds from 1 to {MAX_INVOKE_TIMEOUT_MS}, or 'none', not {text!r}"
        ) from None


def parse_max_payload(text: str) -> int:
    return parse_int("--max-payload", text, MIN_MAX_PAYLOAD, MAX_MAX_PAYLOAD)


def parse_origins(option: str, text: str) -> tuple[str, ...]:
    """Read a comma-separated list of origins.

    Each is `*` (every origin), `<scheme>://*` (every origin of a scheme), `null` or `<scheme>://<host>[:port]`;
    a trailing slash is forgiven.

    Raises:
        ConfigError: for an empty list, or naming the first item that is no origin.
    """
    origins: list[str] = []
    for item in text.split(","):
        origin = item.strip().lower().removesuffix("/")
        if not origin:
            continue
        if origin not in ("*", "null") and _ORIGIN.match(origin) is None:
            raise ConfigError(
                f"{option} takes origins like chrome-extension://<id>, https://example.com or <scheme>://*, "
                f"not {item.strip()!r}"
            )
        origins.append(origin)
    if not origins:
        raise ConfigError(f"{option} takes at least one origin, for example chrome-extension://*")
    return tuple(dict.fromkeys(origins))


def parse_name(option: str, text: str) -> str:
    """Read a name that is shown to people: 1 to 200 printable characters."""
    if not text.strip() or len(text) > 200 or not text.isprintable():
        raise ConfigError(f"{option} takes 1 to 200 printable characters, not {text[:40]!r}")
    return text


def origin_allowed(origin: str, allowed: tuple[str, ...]) -> bool:
    """Whether `origin` (as a browser writes it) matches one of the `allowed` patterns."""
    origin = origin.lower()
    scheme = origin.partition("://")[0]
    return any(
        pattern == "*" or pattern == origin or (pattern == f"{scheme}://*" and "://" in origin)
        for pattern in map(str.lower, allowed)
    )
