"""What can go wrong, and whose fault it was.

Every message is one sentence or two for a person or a model: the cause, then the cure. `may_have_run`
tells a caller of a tool whether the page may have acted: it decides if a retry is safe.
"""

from __future__ import annotations


class RelayError(Exception):
    """Base of every error this package raises on purpose."""

    may_have_run = False


class ConfigError(RelayError):
    """An option has a value that cannot be used. The message names the option and the accepted range."""


class CannotListen(RelayError):
    """The WebSocket port cannot be bound, and no other port would do better: the address is not this machine's."""


class PortTaken(CannotListen):
    """Another program has the WebSocket port."""


class NotSent(RelayError):
    """The call never left the relay, so the page did nothing."""


class ToolNotFound(NotSent):
    """No connected tab offers a tool under this name (or to this target)."""


class SourceNotFound(NotSent):
    """No connected tab matches the `sourceId`, tab id or origin that was asked for."""


class InvalidArguments(NotSent):
    """The arguments do not match the tool's inputSchema."""


class CallFailed(RelayError):
    """The call reached the tab, or may have."""

    may_have_run = True


class SourceLost(CallFailed):
    """The tab went away while the call was waiting."""


class TimedOut(CallFailed):
    """The tab did not answer in time. It was told to stop."""


class ResultRefused(CallFailed):
    """The tab answered with something an MCP client must not be given."""


def innermost(error: BaseException) -> BaseException:
    """The first error of an exception group, however deeply nurseries have wrapped it; any other error is itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
