"""What a probe means: all nine rows, responses of every odd shape, and the provider's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_relay.core.probe import (
    MAX_TEXT_CHARS,
    TABLE,
    Asked,
    Result,
    Silence,
    State,
    answer,
    connected_outcome,
    judge,
    read_request,
    unanswered,
)
from trio_relay.wire import probe as wire

SERVICE = {"namespace": "userscripts", "name": "Lumo Userscripts", "version": "1.0.1"}
GOOD = {"enabled": True, "authorized": True, "ready": True, "pendingApproval": False}


def response(status: Any = GOOD, service: Any = SERVICE, **more: Any) -> bytes:
    return json.dumps({"ok": True, "service": service, "status": status} | more).encode()


def test_the_table_has_the_nine_rows_of_the_contract() -> None:
    outcomes = [(result.value, row.state.value, row.outcome) for result, row in TABLE.items() if not row.own_words]
    assert outcomes == [
        ("rejected", "error", "Extension not installed, or no agent endpoint."),
        ("incomplete", "error", "Probe response is incomplete."),
        ("disabled", "error", "Agent access is turned off in the provider."),
        ("pending", "error", "Waiting for your approval in the provider."),
        ("not-allowed", "error", "The caller is not on the allowlist."),
        ("connected", "connected", "Connected."),
    ]
    own = [result.value for result, row in TABLE.items() if row.own_words]
    assert own == ["timed-out", "protocol-failure", "not-ready"]
    assert len(TABLE) == len(Result) == 9
    assert list(TABLE) == list(Result)  # in the order in which they are judged


@pytest.mark.parametrize(
    ("silence", "result", "outcome"),
    [
        (Silence.NOT_INSTALLED, Result.REJECTED, "Extension not installed, or no agent endpoint."),
        (Silence.NO_RESPONSE, Result.REJECTED, "Extension not installed, or no agent endpoint."),
        (Silence.FAILED, Result.REJECTED, "Extension not installed, or no agent endpoint."),
        (Silence.TIMEOUT, Result.TIMED_OUT, "the browser's words"),
    ],
)
def test_a_probe_without_a_response_is_in_the_first_two_rows(silence: Silence, result: Result, outcome: str) -> None:
    finding = unanswered(silence, "the browser's words")
    assert (finding.result, finding.outcome, finding.state) == (result, outcome, State.ERROR)
    assert "the browser's words" in (finding.outcome, finding.detail)


def test_a_timeout_without_words_has_ours() -> None:
    assert unanswered(Silence.TIMEOUT).outcome == "The provider did not answer within 1500 ms."


@pytest.mark.parametrize(
    ("data", "result", "outcome"),
    [
        (response(), Result.CONNECTED, "Connected."),
        (response(id="p-1", version=1), Result.CONNECTED, "Connected."),
        (response(id=None, version=1.0), Result.CONNECTED, "Connected."),
        (response(future=[1]), Result.CONNECTED, "Connected."),
        (b'{"ok":false,"error":"no such version"}', Result.PROTOCOL_FAILURE, "no such version"),
        (b'{"ok":false,"error":{"code":5,"message":"bad\\nchannel"}}', Result.PROTOCOL_FAILURE, "bad channel"),
        (b'{"ok":false,"message":"odd"}', Result.PROTOCOL_FAILURE, "odd"),
        (b'{"ok":false}', Result.PROTOCOL_FAILURE, "The provider reports a protocol error and does not say which."),
        (response(version=2), Result.PROTOCOL_FAILURE, "The response has another version than 1: 2."),
        (response(version="1"), Result.PROTOCOL_FAILURE, 'The response has another version than 1: "1".'),
        (response(id="p-2"), Result.PROTOCOL_FAILURE, 'The response answers another probe: "p-2".'),
        (response(id=1), Result.PROTOCOL_FAILURE, "The response answers another probe: 1."),
        (response(service=None), Result.INCOMPLETE, "Probe response is incomplete."),
        (response(service={}), Result.INCOMPLETE, "Probe response is incomplete."),
        (response(service={"namespace": 5}), Result.INCOMPLETE, "Probe response is incomplete."),
        (response(status=None), Result.INCOMPLETE, "Probe response is incomplete."),
        (response(status={}), Result.INCOMPLETE, "Probe response is incomplete."),
        (response(GOOD | {"enabled": "false"}), Result.INCOMPLETE, "Probe response is incomplete."),
        (response({"enabled": True}), Result.INCOMPLETE, "Probe response is incomplete."),
        (response({"enabled": True, "authorized": True}), Result.INCOMPLETE, "Probe response is incomplete."),
        (response(ok="yes"), Result.INCOMPLETE, "Probe response is incomplete."),
        (b"{}", Result.INCOMPLETE, "Probe response is incomplete."),
        (response({"enabled": False}), Result.DISABLED, "Agent access is turned off in the provider."),
        (
            response(GOOD | {"authorized": False, "pendingApproval": True}),
            Result.PENDING,
            "Waiting for your approval in the provider.",
        ),
        (response(GOOD | {"authorized": False}), Result.NOT_ALLOWED, "The caller is not on the allowlist."),
        (
            response(GOOD | {"authorized": False, "pendingApproval": "yes"}),
            Result.NOT_ALLOWED,
            "The caller is not on the allowlist.",
        ),
        (response(GOOD | {"ready": False, "reason": "No tab."}), Result.NOT_READY, "No tab."),
        (response(GOOD | {"ready": False, "message": "No tab."}), Result.NOT_READY, "No tab."),
        (
            response(GOOD | {"ready": False, "reason": 5}),
            Result.NOT_READY,
            "The provider is not ready and does not say why.",
        ),
        (
            response({"enabled": False, "authorized": False, "ready": False}),
            Result.DISABLED,
            "Agent access is turned off in the provider.",
        ),
        (response(GOOD | {"authorized": False, "ready": False}), Result.NOT_ALLOWED, TABLE[Result.NOT_ALLOWED].outcome),
    ],
)
def test_a_response_is_in_the_first_row_that_fits(data: bytes, result: Result, outcome: str) -> None:
    finding = judge(data, "p-1")
    assert (finding.result, finding.outcome) == (result, outcome)
    assert finding.state is (State.CONNECTED if result is Result.CONNECTED else State.ERROR)


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"42", b'"ok"', b"true", b"{", b"\xff", b'{"ok":' + b"[" * 5_000 + b"]" * 5_000 + b"}"],
)
def test_what_is_no_object_is_incomplete(data: bytes) -> None:
    assert judge(data, "p-1").result is Result.INCOMPLETE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), lambda inner: st.lists(inner)
)
STATUS = st.dictionaries(st.sampled_from(["enabled", "authorized", "ready", "pendingApproval", "reason"]), JSON)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "ok": JSON,
        "service": JSON | st.dictionaries(st.sampled_from(["namespace", "name", "version"]), JSON),
        "status": JSON | STATUS,
        "id": JSON,
        "version": JSON,
        "error": JSON,
    },
)


@given(PARTS | JSON)
def test_whatever_is_sent_has_a_row_and_only_three_true_flags_connect(value: Any) -> None:
    finding = judge(json.dumps(value).encode(), "p-1")
    assert 0 < len(finding.outcome) <= MAX_TEXT_CHARS
    assert finding.outcome.isprintable()
    if finding.state is State.CONNECTED:
        assert value["ok"] is True
        assert all(value["status"][flag] is True for flag in ("enabled", "authorized", "ready"))


@given(st.binary())
def test_any_bytes_have_a_row(data: bytes) -> None:
    assert judge(data, "p-1").state in State


def test_words_of_a_provider_are_cut_and_on_one_line() -> None:
    status = GOOD | {"ready": False, "reason": "a\x1b[31m\u2028\ud83d" + "x" * 1_000_000}
    outcome = judge(response(status), "p-1").outcome
    assert outcome.startswith("a [31m")
    assert outcome.isprintable()
    assert len(outcome) == MAX_TEXT_CHARS


def test_the_service_is_kept_also_when_the_policy_says_no() -> None:
    finding = judge(response({"enabled": False}, {"namespace": "n", "name": 5}), "p-1")
    assert finding.service == wire.Service("n", "n", "")


@pytest.mark.parametrize(
    ("tools", "refused", "text"),
    [(0, 0, "Connected: 0 tools."), (1, 0, "Connected: 1 tool."), (64, 1, "Connected: 64 tools, 1 refused.")],
)
def test_a_connected_provider_is_shown_with_its_counts(tools: int, refused: int, text: str) -> None:
    assert connected_outcome(tools, refused) == text


# --- the provider's side

REQUEST: dict[str, Any] = {
    "channel": "lumo:probe",
    "version": 1,
    "id": "probe-42",
    "client": {"id": "x", "name": "Lumo", "version": "1.0.19"},
}


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({}, Asked("Lumo", "1.0.19")),
        ({"client": None}, Asked("", "")),
        ({"client": {"name": 5, "version": "2"}}, Asked("", "2")),
        ({"client": {"name": "a\nb"}, "future": 1}, Asked("a b", "")),
        ({"channel": "other"}, "The channel of a probe is lumo:probe."),
        ({"channel": None}, "The channel of a probe is lumo:probe."),
        ({"version": 2}, "Only probe version 1 is spoken here."),
        ({"version": "1"}, "Only probe version 1 is spoken here."),
        ({"id": 42}, "A probe has an id, which is a string."),
        ({"id": ""}, "A probe has an id, which is a string."),
    ],
)
def test_a_request_is_read_or_its_protocol_failure_is_named(change: dict[str, Any], asked: Asked | str) -> None:
    assert read_request(json.dumps(REQUEST | change).encode()) == asked


@pytest.mark.parametrize("data", [b"null", b"[]", b"{", b"", b'"lumo:probe"', b"\xff"])
def test_what_is_no_object_is_a_protocol_failure_and_no_exception(data: bytes) -> None:
    assert read_request(data) == "A probe is a JSON object."


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(REQUEST, JSON)) | JSON)
def test_any_request_gets_an_answer_that_is_judged_alike(value: Any) -> None:
    status = wire.Status(enabled=False, authorized=False, ready=False, pending_approval=False)
    asked = read_request(json.dumps(value).encode())
    finding = judge(answer(asked, wire.Service("n", "N", "1"), status), "any")
    assert finding.result is (Result.PROTOCOL_FAILURE if isinstance(asked, str) else Result.DISABLED)


def test_ok_is_true_for_a_policy_failure_and_the_shape_is_the_contract_s() -> None:
    status = wire.Status(enabled=True, authorized=False, ready=True, pending_approval=True)
    assert json.loads(answer(Asked("", ""), wire.Service(**SERVICE), status)) == {
        "ok": True,
        "service": SERVICE,
        "status": {"enabled": True, "authorized": False, "ready": True, "pendingApproval": True},
    }


def test_ok_is_false_for_a_protocol_failure_only() -> None:
    status = wire.Status(enabled=True, authorized=True, ready=True, pending_approval=False)
    failure = json.loads(answer("Only probe version 1 is spoken here.", wire.Service(**SERVICE), status))
    assert failure == {"ok": False, "error": "Only probe version 1 is spoken here."}


def test_a_provider_that_is_not_ready_tells_its_reason() -> None:
    status = wire.Status(enabled=True, authorized=True, ready=False, pending_approval=False, reason="No tab.")
    finding = judge(answer(Asked("", ""), wire.Service(**SERVICE), status), "any")
    assert (finding.result, finding.outcome) == (Result.NOT_READY, "No tab.")


def test_a_response_without_reason_is_not_null_but_absent() -> None:
    status = wire.Status(enabled=True, authorized=True, ready=True, pending_approval=False)
    assert b"null" not in answer(Asked("", ""), wire.Service(**SERVICE), status)
    assert b"reason" not in answer(Asked("", ""), wire.Service(**SERVICE), status)
