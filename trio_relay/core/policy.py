"""Who may do what on the provider side: the switches, and the decision about one tool call as a table.

Only the sender id that the browser supplies counts. The names that callers give themselves are shown, never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import msgspec
from msgspec import UNSET

from trio_relay.core.extension_id import is_extension_id, require_extension_id
from trio_relay.wire.codec import Malformed, Maybe, decode
from trio_relay.wire.probe import Status, as_flag


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The switches, as they stand in the policy file. Unless somebody says otherwise, nothing is allowed.

    A member that is not known is refused: a misspelt `review` would else let writes pass.

    Attributes:
        enabled: Whether the endpoint answers anybody at all.
        writes: Whether tools that are not read-only may be called.
        review: Whether each write waits for a decision.
        allowed: Extension ids that may call.
        denied: Extension ids that were turned down: they do not ask again.
    """

    enabled: bool = False
    writes: bool = False
    review: bool = False
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for extension_id in (*self.allowed, *self.denied):
            if not is_extension_id(extension_id):
                raise ValueError(f"{extension_id[:64]!r} is no extension id")


class PendingCaller(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An unknown caller that waits for approval.

    Attributes:
        extension_id: What the browser says.
        name, version: What it says of itself; for display only.
        since: ISO-8601, UTC.
    """

    extension_id: str
    name: str
    version: str
    since: str

    def __post_init__(self) -> None:
        if not is_extension_id(self.extension_id):
            raise ValueError(f"{self.extension_id[:64]!r} is no extension id")


class Standing(Enum):
    ALLOWED = "allowed"
    UNKNOWN = "unknown"  # waits for approval
    DENIED = "denied"


class Refusal(Enum):
    """Why a call is not executed. The values stand in the audit log."""

    ENDPOINT_OFF = "endpoint-off"
    NOT_ALLOWED = "not-allowed"
    NOT_APPROVED_YET = "not-approved-yet"
    WRITES_OFF = "writes-off"
    RATE_LIMITED = "rate-limited"
    REVIEW_DENIED = "review-denied"
    REVIEW_TIMED_OUT = "review-timed-out"
    REVIEW_FULL = "review-full"
    CANCELLED = "cancelled"


REASONS: dict[Refusal, str] = {
    Refusal.ENDPOINT_OFF: "Agent access is turned off in this provider.",
    Refusal.NOT_ALLOWED: "This caller is not on the allowlist of this provider.",
    Refusal.NOT_APPROVED_YET: "This caller waits for approval in this provider.",
    Refusal.WRITES_OFF: "Tools that change something are turned off in this provider.",
    Refusal.RATE_LIMITED: "Too many calls that change something.",
    Refusal.REVIEW_DENIED: "The call was turned down in a review. It was not executed.",
    Refusal.REVIEW_TIMED_OUT: "Nobody decided about the call in time. It was not executed and will not be.",
    Refusal.REVIEW_FULL: "Too many calls of this caller wait for a decision. Try again when some are decided.",
    Refusal.CANCELLED: "The call was cancelled before it was executed.",
}
"""What the caller reads."""

Verdict = Literal["run", "review"] | Refusal


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table: the verdict where every member that is not None is as given."""

    verdict: Verdict
    enabled: bool | None = None
    standing: Standing | None = None
    write: bool | None = None
    writes: bool | None = None
    review: bool | None = None


RULES = (
    Rule(Refusal.ENDPOINT_OFF, enabled=False),
    Rule(Refusal.NOT_ALLOWED, standing=Standing.DENIED),
    Rule(Refusal.NOT_APPROVED_YET, standing=Standing.UNKNOWN),
    Rule("run", write=False),
    Rule(Refusal.WRITES_OFF, writes=False),
    Rule("review", review=True),
    Rule("run"),
)
"""The first rule that fits holds; the last one fits all."""


def standing_of(policy: Policy, sender_id: object) -> Standing:
    """Where a sender stands. What is no extension id is denied; so is one that is on both lists."""
    if not is_extension_id(sender_id) or sender_id in policy.denied:
        return Standing.DENIED
    return Standing.ALLOWED if sender_id in policy.allowed else Standing.UNKNOWN


def decide(policy: Policy, sender_id: object, *, write: bool) -> Verdict:
    """What happens to a tool call under the policy of this moment."""
    standing = standing_of(policy, sender_id)
    facts = (policy.enabled, standing, write, policy.writes, policy.review)
    for rule in RULES:
        wanted = (rule.enabled, rule.standing, rule.write, rule.writes, rule.review)
        if all(want is None or want == fact for want, fact in zip(wanted, facts, strict=True)):
            return rule.verdict
    raise AssertionError("the last rule fits all")


def status_for(policy: Policy, sender_id: object, *, not_ready: str | None = None) -> Status:
    """What a probe of this sender is told.

    Args:
        not_ready: Why nothing can be served at the moment; None when it can.
    """
    standing = standing_of(policy, sender_id)
    return Status(
        enabled=policy.enabled,
        authorized=standing is Standing.ALLOWED,
        ready=not_ready is None,
        pending_approval=policy.enabled and standing is Standing.UNKNOWN,
        reason=not_ready,
    )


def allow(policy: Policy, extension_id: str) -> Policy:
    """The policy with an id on the allow-list. Raises `ConfigError` when it is no extension id."""
    require_extension_id(extension_id)
    return msgspec.structs.replace(
        policy,
        allowed=(*_without(policy.allowed, extension_id), extension_id),
        denied=_without(policy.denied, extension_id),
    )


def deny(policy: Policy, extension_id: str) -> Policy:
    """The policy with an id turned down. Raises `ConfigError` when it is no extension id."""
    require_extension_id(extension_id)
    return msgspec.structs.replace(
        policy,
        allowed=_without(policy.allowed, extension_id),
        denied=(*_without(policy.denied, extension_id), extension_id),
    )


def _without(ids: tuple[str, ...], extension_id: str) -> tuple[str, ...]:
    return tuple(other for other in ids if other != extension_id)


class _Annotations(msgspec.Struct, frozen=True):
    readOnlyHint: Maybe = UNSET


class _Tool(msgspec.Struct, frozen=True):
    annotations: Maybe = UNSET


_tools = msgspec.json.Decoder(_Tool)
_annotations = msgspec.json.Decoder(_Annotations)


def is_write(tool: bytes) -> bool:
    """Whether a tool counts as one that changes something: unless its `readOnlyHint` is true, it does.

    Args:
        tool: JSON text of an MCP Tool; anything else is a write.
    """
    try:
        annotations = decode(_tools, tool).annotations
        if isinstance(annotations, msgspec.UnsetType):
            return True
        return as_flag(decode(_annotations, bytes(annotations)).readOnlyHint) is not True
    except Malformed:
        return True
