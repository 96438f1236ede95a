"""Both sides of the extension protocol in one relay process: what is used when this process owns the browser.

Implements `relay.extending.Extending`. Nothing here imports the MCP SDK; that happens in a thread once there is
somebody to talk MCP with.
"""

from __future__ import annotations

import hmac
import importlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from trio_relay._version import __version__
from trio_relay.config import OWN_EXTENSION, RelayConfig
from trio_relay.core.backend import ToolBackend
from trio_relay.core.limits import namespace_problem
from trio_relay.core.port import Port
from trio_relay.errors import ConfigError, InvalidArguments, NotSent
from trio_relay.extensions.audit import AuditLog
from trio_relay.extensions.files import write_private
from trio_relay.extensions.host import Providers
from trio_relay.extensions.provider import NAMESPACE, Caller, Provider, Served
from trio_relay.extensions.store import ProviderStore
from trio_relay.links.socket import single_errors
from trio_relay.links.tunnel import Tunnel
from trio_relay.wire.codec import encode
from trio_relay.wire.probe import PORT_NAME, Service

logger = logging.getLogger(__name__)

ENTRY_FILE = "relay.json"
"""How commands find the relay that owns the browser: `{"host", "port", "token"}`, for the same person's eyes only."""

ENVELOPE_BYTES = 1_000
"""By how much a frame of the tunnel is longer than the message in it, at the most."""


@dataclass(frozen=True, kw_only=True)
class ExtensionSettings:
    """What a relay does with other extensions.

    Attributes:
        providers: Ids of provider extensions whose tools are offered.
        serve: Whether the relay's own tools are served to host extensions.
        namespace: What hosts put in front of their names.
    """

    providers: tuple[str, ...] = ()
    serve: bool = False
    namespace: str = NAMESPACE

    def check(self) -> None:
        """Raise `ConfigError` for a namespace that cannot be used."""
        problem = namespace_problem(self.namespace)
        if problem is not None:
            raise ConfigError(f"--serve-namespace: {problem}")


class Entry(msgspec.Struct, frozen=True):
    """What `ENTRY_FILE` holds."""

    host: str
    port: int
    token: str


class _Decision(msgspec.Struct, frozen=True):
    reviewId: str
    approve: bool


class Extensions:
    """See the module. Create it with `open_extensions`.

    Args:
        directory: Of policy, reviews and audit log (`~/.webmcp/provider`).
        tools: Makes what calls tools, from a backend: `surface.management.Tools`, and its definitions.
    """

    def __init__(self, settings: ExtensionSettings, directory: Path, config: RelayConfig, tools: ToolsFactory) -> None:
        settings.check()
        self.settings = settings
        self.providers = Providers(settings.providers, client_id=OWN_EXTENSION, invoke_timeout=config.invoke_timeout)
        self._config = config
        self._directory = directory
        self._tools = tools
        self._store = ProviderStore(directory)
        self._audit = AuditLog(directory)
        self._token = secrets.token_hex(16)
        self._provider: Provider | None = None

    def __repr__(self) -> str:
        return f"<Extensions: {self.providers!r}, {self._provider!r}>"

    # -- Extending

    def owns(self, tabs: ToolBackend, host: str, port: int) -> None:
        self._write_entry(Entry(host, port, self._token))
        if not self.settings.serve:
            return
        self._provider = Provider(
            self._store,
            self._audit,
            Service(self.settings.namespace, "trio-relay", __version__),
            _LazyFactory(tabs, self._tools, self.settings.namespace),
            timeout=self._config.invoke_timeout,
            max_message=self._config.max_payload - ENVELOPE_BYTES,
        )

    def owns_no_longer(self) -> None:
        if self._provider is not None:
            self._provider.end_reviews()
            self._provider = None
        entry = read_entry(self._directory)
        if entry is not None and entry.token == self._token:  # else another relay is the owner already
            with suppress(OSError):
                (self._directory / ENTRY_FILE).unlink()

    async def serve(self, tunnel: Tunnel) -> None:
        provider = self._provider
        if provider is None:
            tunnel.accept()
        else:

            async def on_port(port: Port, name: str) -> None:
                if name != PORT_NAME:
                    port.close(f"there is only the port {PORT_NAME} here")
                    return
                await provider.serve(port)

            tunnel.accept(provider.probe, on_port)
        logger.info("%s: carries ports of extensions", tunnel.label)
        with self.providers.attach(tunnel, client_id=tunnel.extension_id):
            await trio.sleep_forever()

    async def administer(self, token: str, ask: str, args: bytes) -> bytes:
        if not hmac.compare_digest(token.encode(errors="surrogatepass"), self._token.encode()):
            raise NotSent("The relay does not know you: the command must run as the person who runs the relay.")
        match ask:
            case "providers":
                self.providers.asked()
                return encode(self.providers.rows())
            case "reviews":
                return encode(self._serving().reviews())
            case "decide":
                try:
                    decision = msgspec.json.decode(args, type=_Decision)
                except msgspec.MsgspecError as error:
                    raise InvalidArguments(f"a decision is reviewId and approve: {error}") from None
                return encode(self._serving().decide_review(decision.reviewId, decision.approve))
            case _:
                raise InvalidArguments(f"this relay does not know the command {ask[:40]!r}")

    def _serving(self) -> Provider:
        if self._provider is None:
            raise NotSent("The relay serves no extensions: start it with --serve-extensions.")
        return self._provider

    # -- the entry for commands

    def _write_entry(self, entry: Entry) -> None:
        try:
            write_private(self._directory / ENTRY_FILE, encode(entry))
        except OSError as error:
            logger.warning("commands will not find this relay: %s cannot be written (%s)", ENTRY_FILE, error.strerror)


ToolsFactory = Callable[[ToolBackend], tuple[Any, Any]]
"""From a backend to what calls its tools and the management tools, and the definitions of those."""


class _LazyFactory:
    """A server factory that is made, and imports the SDK, at its first use."""

    def __init__(self, tabs: ToolBackend, tools: ToolsFactory, namespace: str) -> None:
        self._tabs = tabs
        self._tools = tools
        self._namespace = namespace
        self._factory: Callable[[Caller], Served] | None = None

    def __call__(self, caller: Caller) -> Served:
        if self._factory is None:
            relay_tools = importlib.import_module("trio_relay.extensions.relay_tools")
            tools, definitions = self._tools(self._tabs)
            self._factory = relay_tools.RelayTools(self._tabs, tools, definitions, namespace=self._namespace)
        assert self._factory is not None
        return self._factory(caller)


def read_entry(directory: Path) -> Entry | None:
    """The relay that owns the browser and does something with extensions, if there is one."""
    try:
        return msgspec.json.decode((directory / ENTRY_FILE).read_bytes(), type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None


@asynccontextmanager
async def open_extensions(
    settings: ExtensionSettings, directory: Path, config: RelayConfig, tools: ToolsFactory
) -> AsyncIterator[Extensions]:
    """Be ready for browsers while the block runs; give what this yields to `open_cluster`.

    Raises:
        ConfigError: on entry, for an id or a namespace that cannot be used.
    """
    extensions = Extensions(settings, directory, config, tools)
    with single_errors():  # such as those of `open_cluster` inside the block
        async with trio.open_nursery() as nursery:
            nursery.start_soon(extensions.providers.run)
            try:
                yield extensions
            finally:
                nursery.cancel_scope.cancel()
