"""What a probe means: the table of states for a host, and the answer of a provider.

A host turns whatever happened to its probe into one of nine rows; nothing a provider can send raises here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from msgspec import UNSET, UnsetType

from trio_relay.core.text import tidy
from trio_relay.wire import probe as wire
from trio_relay.wire.codec import Malformed, Maybe, as_number, as_text, encode

MAX_TEXT_CHARS = 500
"""How much of a text of a provider (its reason, its error, its name) is shown."""


class State(Enum):
    CONNECTED = "connected"
    CONNECTING = "connecting"
    ERROR = "error"


class Result(Enum):
    """What a probe can come to, in the order in which it is judged: the first that fits holds."""

    REJECTED = "rejected"
    TIMED_OUT = "timed-out"
    PROTOCOL_FAILURE = "protocol-failure"
    INCOMPLETE = "incomplete"
    DISABLED = "disabled"
    PENDING = "pending"
    NOT_ALLOWED = "not-allowed"
    NOT_READY = "not-ready"
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        when: What the probe came to.
        state: State of the provider for its host.
        outcome: What the user reads, unless `own_words`.
        own_words: Whether the message of the browser or the provider is shown instead, where there is one.
    """

    when: str
    state: State
    outcome: str
    own_words: bool = False


TABLE: dict[Result, Row] = {
    Result.REJECTED: Row("sendMessage rejects", State.ERROR, "Extension not installed, or no agent endpoint."),
    Result.TIMED_OUT: Row(
        "no answer within 1500 ms", State.ERROR, f"The provider did not answer within {wire.TIMEOUT_MS} ms.", True
    ),
    Result.PROTOCOL_FAILURE: Row(
        "ok is false", State.ERROR, "The provider reports a protocol error and does not say which.", True
    ),
    Result.INCOMPLETE: Row("service or status is missing", State.ERROR, "Probe response is incomplete."),
    Result.DISABLED: Row("enabled is false", State.ERROR, "Agent access is turned off in the provider."),
    Result.PENDING: Row(
        "authorized is false, approval is pending", State.ERROR, "Waiting for your approval in the provider."
    ),
    Result.NOT_ALLOWED: Row("authorized is false", State.ERROR, "The caller is not on the allowlist."),
    Result.NOT_READY: Row("ready is false", State.ERROR, "The provider is not ready and does not say why.", True),
    Result.CONNECTED: Row("all pass", State.CONNECTED, "Connected."),
}


class Silence(Enum):
    """Why there is no response. The values are the `error.kind`s of a `probe/response` frame."""

    NOT_INSTALLED = "not-installed"  # no such extension, or it has no listener: browsers do not tell which
    NO_RESPONSE = "no-response"  # a listener that does not know the message
    TIMEOUT = "timeout"
    FAILED = "failed"  # the browser could not even ask


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of a provider after a probe.

    Attributes:
        outcome: What the user reads.
        service: The provider's description of itself, once a response had a usable one.
        detail: Words of the browser that the row does not show: for the log.
    """

    result: Result
    outcome: str
    service: wire.Service | None = None
    detail: str = ""

    @property
    def state(self) -> State:
        return TABLE[self.result].state


def unanswered(silence: Silence, message: str = "") -> Finding:
    """The finding for a probe without a response; `message` is the browser's own."""
    result = Result.TIMED_OUT if silence is Silence.TIMEOUT else Result.REJECTED
    return _finding(result, message)


def judge(response: bytes, probe_id: str) -> Finding:
    """The finding for a response.

    Args:
        response: JSON text, whatever the provider sent.
        probe_id: Id of the probe it should answer. A response need not repeat it; another one is an error.
    """
    try:
        answer = wire.decode_response(response)
    except Malformed:
        return _finding(Result.INCOMPLETE, detail="the response is no JSON object")
    strange = _strange(answer, probe_id)
    if strange is not None:
        return _finding(Result.PROTOCOL_FAILURE, strange)
    ok = wire.as_flag(answer.ok)
    if ok is False:
        return _finding(Result.PROTOCOL_FAILURE, _error_text(answer))
    service = _service(wire.service_of(answer.service))
    status = wire.status_of(answer.status)
    if ok is None or service is None or status is None:
        return _finding(Result.INCOMPLETE, service=service)
    return _finding(*_judge_status(status), service=service)


def connected_outcome(tools: int, refused: int = 0) -> str:
    """What the user reads once the tools of a connected provider are known."""
    text = "1 tool" if tools == 1 else f"{tools} tools"
    return f"Connected: {text}, {refused} refused." if refused else f"Connected: {text}."


def _judge_status(status: wire.SomeStatus) -> tuple[Result, str]:
    # One by one, in the order of the table: a provider that is off need not say whether it is ready.
    enabled, authorized, ready = map(wire.as_flag, (status.enabled, status.authorized, status.ready))
    if enabled is not True:
        return (Result.INCOMPLETE if enabled is None else Result.DISABLED), ""
    if authorized is None:
        return Result.INCOMPLETE, ""
    if not authorized:
        return (Result.PENDING if wire.as_flag(status.pending_approval) else Result.NOT_ALLOWED), ""
    if ready is not True:
        reason = as_text(status.reason) or as_text(status.message) or ""
        return (Result.INCOMPLETE, "") if ready is None else (Result.NOT_READY, reason)
    return Result.CONNECTED, ""


def _finding(result: Result, words: str = "", service: wire.Service | None = None, detail: str = "") -> Finding:
    row = TABLE[result]
    words = tidy(words, MAX_TEXT_CHARS)
    if row.own_words and words:
        return Finding(result, words, service, detail)
    return Finding(result, row.outcome, service, detail or words)


def _strange(answer: wire.SomeResponse, probe_id: str) -> str | None:
    """What is wrong if a response repeats version and id of the probe, and repeats them wrongly."""
    if not _absent(answer.version) and not _is_version(answer.version):
        return f"The response has another version than {wire.VERSION}: {_shown(answer.version)}."
    if not _absent(answer.id) and as_text(answer.id) != probe_id:
        return f"The response answers another probe: {_shown(answer.id)}."
    return None


def _error_text(answer: wire.SomeResponse) -> str:
    """The contract does not say where the message of a protocol error stands: these are the usual places."""
    inner = wire.error_of(answer.error)
    texts = (answer.error, UNSET if inner is None else inner.message, answer.message)
    return next(filter(None, map(as_text, texts)), "")


def _service(service: wire.SomeService | None) -> wire.Service | None:
    """Name and version are for display, so only the namespace must be there."""
    namespace = None if service is None else as_text(service.namespace)
    if service is None or not namespace:
        return None
    return wire.Service(
        namespace,
        tidy(as_text(service.name) or namespace, MAX_TEXT_CHARS),
        tidy(as_text(service.version) or "", MAX_TEXT_CHARS),
    )


def _absent(member: Maybe) -> bool:
    return isinstance(member, UnsetType) or bytes(member) == b"null"


def _is_version(member: Maybe) -> bool:
    number = as_number(member)
    return number is not None and float(number) == wire.VERSION


def _shown(member: Maybe) -> str:
    return "" if isinstance(member, UnsetType) else bytes(member)[:60].decode(errors="replace")


# --- the provider's side


@dataclass(frozen=True, slots=True)
class Asked:
    """What a probe of somebody says of its sender, for display only."""

    name: str
    version: str


def read_request(message: bytes) -> Asked | str:
    """Read a message that another extension sent us.

    Returns:
        Who says it is asking; or, for anything that is no probe of this version, the protocol failure in words.
    """
    try:
        asked = wire.decode_request(message)
    except Malformed:
        return "A probe is a JSON object."
    if as_text(asked.channel) != wire.CHANNEL:
        return f"The channel of a probe is {wire.CHANNEL}."
    if not _is_version(asked.version):
        return f"Only probe version {wire.VERSION} is spoken here."
    if not as_text(asked.id):
        return "A probe has an id, which is a string."
    client = wire.client_of(asked.client)
    return Asked(tidy(as_text(client.name) or "", MAX_TEXT_CHARS), tidy(as_text(client.version) or "", MAX_TEXT_CHARS))


def answer(asked: Asked | str, service: wire.Service, status: wire.Status) -> bytes:
    """The response to a message: `ok: false` for a protocol failure only, `ok: true` whatever the policy says."""
    if isinstance(asked, str):
        return encode(wire.Failure(asked))
    return encode(wire.Response(True, service, status))
