"""The probe on the wire: our request byte for byte, and reading that never costs more than the odd member."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET, Raw

from trio_relay.wire import probe
from trio_relay.wire.codec import Malformed, as_text


def test_a_request_has_exactly_the_members_of_the_contract() -> None:
    data = probe.request("probe-42", probe.Client("abc", "Lumo", "1.0.19"))
    assert json.loads(data) == {
        "channel": "lumo:probe",
        "version": 1,
        "id": "probe-42",
        "client": {"id": "abc", "name": "Lumo", "version": "1.0.19"},
    }


def test_the_fixed_names_and_numbers_are_the_contract_s() -> None:
    assert (probe.CHANNEL, probe.PORT_NAME, probe.VERSION, probe.TIMEOUT_MS) == ("lumo:probe", "lumo:mcp", 1, 1500)


@pytest.mark.parametrize("text", ["null", "[]", "1", '"x"', "{", "", '{"ok":NaN}'])
def test_what_is_no_object_is_malformed(text: str) -> None:
    for decode in (probe.decode_request, probe.decode_response):
        with pytest.raises(Malformed):
            decode(text.encode())


def test_an_odd_member_does_not_cost_its_siblings() -> None:
    status = probe.status_of(Raw(b'{"enabled":"yes","authorized":true,"reason":{"a":[]}}'))
    assert status is not None
    assert probe.as_flag(status.enabled) is None
    assert probe.as_flag(status.authorized) is True
    assert as_text(status.reason) is None


@pytest.mark.parametrize("member", [UNSET, Raw(b"null"), Raw(b"5"), Raw(b'"x"'), Raw(b"[]")])
def test_a_part_that_is_no_object_is_no_part(member: Raw) -> None:
    assert probe.service_of(member) is None
    assert probe.status_of(member) is None
    assert probe.error_of(member) is None
    assert probe.client_of(member) == probe.SomeClient()


@pytest.mark.parametrize(
    ("member", "flag"),
    [(Raw(b"true"), True), (Raw(b"false"), False), (Raw(b"1"), None), (Raw(b'"true"'), None), (UNSET, None)],
)
def test_a_flag_is_true_or_false_and_nothing_that_looks_like_it(member: Raw, flag: bool | None) -> None:
    assert probe.as_flag(member) is flag
