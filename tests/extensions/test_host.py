"""The host and its providers: every row of the state table end to end, and when probes are sent."""

from __future__ import annotations

import sys

import pytest
import trio
from trio.testing import MockClock

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.extensions.host_setting import (
    MAIL,
    NOTES,
    OTHER_BROWSER,
    OURS,
    Browser,
    Extension,
    args,
    connected,
    failed,
    ready,
    row_that,
    shown,
)
from trio_relay._version import __version__
from trio_relay.core.backend import ToolProviders
from trio_relay.core.port import Unanswered
from trio_relay.core.probe import Silence
from trio_relay.errors import ConfigError
from trio_relay.extensions.host import Providers


@pytest.fixture
def providers(nursery: trio.Nursery) -> Providers:
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    return providers


BAD = ["", "a" * 31, "a" * 33, "A" * 32, "q" * 32, "a" * 32 + "\n", "*"]


@pytest.mark.parametrize("bad", BAD)
def test_whatever_is_no_extension_id_is_refused_wherever_it_is_given(bad: str) -> None:
    with pytest.raises(ConfigError):
        Providers([NOTES, bad], client_id=OURS)
    with pytest.raises(ConfigError):
        Providers([NOTES], client_id=bad)


@pytest.mark.parametrize("bad", BAD)
async def test_a_browser_with_a_bad_id_is_not_attached(bad: str, nursery: trio.Nursery) -> None:
    providers = Providers([NOTES], client_id=OURS)
    with pytest.raises(ConfigError), providers.attach(Browser(nursery), client_id=bad):
        raise AssertionError("never entered")
    assert providers.browsers == []


ROWS: list[tuple[object, str, str]] = [
    (Unanswered(Silence.NOT_INSTALLED, "x"), "error", "Extension not installed, or no agent endpoint."),
    (Unanswered(Silence.NO_RESPONSE), "error", "Extension not installed, or no agent endpoint."),
    (None, "error", "The browser says: timed out."),
    ({"ok": False, "error": "Only version 1."}, "error", "Only version 1."),
    ({"ok": True, "service": ready()["service"]}, "error", "Probe response is incomplete."),
    (b"5", "error", "Probe response is incomplete."),
    (b"\xff{", "error", "Probe response is incomplete."),
    (ready() | {"version": 2}, "error", "The response has another version than 1: 2."),
    (ready(enabled=False), "error", "Agent access is turned off in the provider."),
    (ready(authorized=False, pendingApproval=True), "error", "Waiting for your approval in the provider."),
    (ready(authorized=False), "error", "The caller is not on the allowlist."),
    (ready(ready=False, reason="Sign in first."), "error", "Sign in first."),
    (ready(), "connected", "Connected: 2 tools."),
    (RuntimeError("a bug of the carrier"), "error", "Extension not installed, or no agent endpoint."),
]


@pytest.mark.parametrize(("answer", "state", "outcome"), ROWS)
async def test_a_probe_leads_to_its_row_of_the_table(
    answer: object, state: str, outcome: str, providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    extension = Extension()
    extension.probe = answer
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        row = await row_that(providers, lambda row: row.state != "connecting")
        assert (row.state, row.outcome) == (state, outcome)
        assert row.tool_count == (2 if state == "connected" else 0)
        assert len(list(providers.tools())) == row.tool_count
        assert len(extension.ports) == (1 if state == "connected" else 0)


async def test_a_probe_that_the_carrier_forgets_times_out_all_the_same(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    class Forgetful(Browser):
        async def probe(self, extension_id: str, message: bytes, timeout: float) -> bytes:
            await trio.sleep_forever()
            raise AssertionError("unreachable")

    begun = trio.current_time()
    with providers.attach(Forgetful(nursery)):
        row = await failed(providers)
    assert row.outcome == "The provider did not answer within 1500 ms."
    assert trio.current_time() - begun == pytest.approx(2.0)


async def test_a_probe_is_the_exact_wire(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    here, there = Browser(nursery), Browser(nursery)
    with providers.attach(here), providers.attach(there, client_id=OTHER_BROWSER):
        await failed(providers)
    (probe,) = here.probes
    assert probe == {
        "channel": "lumo:probe",
        "version": 1,
        "id": probe["id"],
        "client": {"id": OURS, "name": "trio-relay", "version": __version__},
    }
    assert there.probes[0]["client"]["id"] == OTHER_BROWSER
    assert probe["id"] != there.probes[0]["id"]
    assert here.timeouts == [1.5]


def test_the_host_is_what_relays_expect() -> None:
    backend: ToolProviders = Providers([NOTES], client_id=OURS)
    assert (backend.names(), backend.listing(), list(backend.tools())) == (frozenset(), [], [])
    assert [row.extension_id for row in backend.rows()] == [NOTES]


async def test_a_row_says_who_the_provider_is(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    (row,) = providers.rows()
    assert (row.extension_id, row.namespace, row.state) == (NOTES, None, "connecting")
    with providers.attach(Browser(nursery, **{NOTES: Extension()})):
        row = await connected(providers)
    assert (row.namespace, row.name, row.version, row.refused) == ("notes", "Notes", "1.2", ())


async def test_without_a_browser_the_row_says_so_after_a_while(providers: Providers, autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    row = await failed(providers)
    assert row.outcome == "No browser with the trio-relay extension is connected."
    assert trio.current_time() - begun == pytest.approx(5)


async def test_an_error_is_probed_again_every_minute(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    extension = Extension()
    extension.probe = ready(enabled=False)
    browser = Browser(nursery, **{NOTES: extension})
    with providers.attach(browser):
        await failed(providers)
        await trio.sleep(125)
        assert [at - browser.probed[0] for at in browser.probed] == pytest.approx([0, 60, 120])
        extension.probe = ready()
        await connected(providers)
        assert trio.current_time() - browser.probed[0] == pytest.approx(180, abs=0.1)
        await trio.sleep(1000)
        assert len(browser.probed) == 4, "what is connected is not probed"


async def test_asking_for_the_tools_probes_an_error_again_after_5_seconds(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    extension = Extension()
    extension.probe = ready(authorized=False)
    browser = Browser(nursery, **{NOTES: extension})
    with providers.attach(browser):
        await failed(providers)
        await trio.sleep(4.9)
        providers.asked()
        await trio.sleep(0.09)
        assert len(browser.probed) == 1
        await trio.sleep(0.02)
        providers.asked()
        providers.asked()
        await trio.sleep(0.1)
        assert len(browser.probed) == 2
        await trio.sleep(5)
        extension.probe = ready()
        providers.asked()
        await connected(providers)
        assert len(browser.probed) == 3
        await trio.sleep(30)
        providers.asked()
        await trio.sleep(1)
        assert len(browser.probed) == 3


async def test_an_error_is_probed_again_when_a_browser_comes(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    extension = Extension()
    extension.probe = ready(enabled=False)
    browser = Browser(nursery, **{NOTES: extension})
    with providers.attach(browser):
        await failed(providers)
    extension.probe = ready()
    with providers.attach(browser):
        await connected(providers)
    assert browser.probed[0] == browser.probed[-1], "at once: no time has passed"


async def test_one_provider_costs_the_other_nothing(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    providers = Providers([MAIL, NOTES, MAIL], client_id=OURS)
    nursery.start_soon(providers.run)
    silent = Extension(namespace="mail")
    silent.deaf = {"initialize", "server/discover"}
    begun = trio.current_time()
    with providers.attach(Browser(nursery, **{NOTES: Extension(), MAIL: silent})):
        await connected(providers, 1)
        assert trio.current_time() - begun < 1
        assert providers.rows()[0].state == "connecting"
        row = await failed(providers)
        assert row.outcome == "No MCP session: the provider did not complete the MCP handshake within 20 s."
        assert trio.current_time() - begun == pytest.approx(20, abs=0.1)
        assert [row.extension_id for row in providers.rows()] == [MAIL, NOTES]


async def test_a_port_that_is_refused_is_an_error_with_the_reason(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    extension = Extension()
    extension.refusal = "no listener for lumo:mcp"
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        assert (await failed(providers)).outcome == "No MCP session: no listener for lumo:mcp."


async def test_the_sdk_is_loaded_once_a_provider_is_there(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real clock, as the import takes place in a thread."""
    name = "trio_relay.extensions.session"
    monkeypatch.delitem(sys.modules, name)
    providers = Providers([NOTES, MAIL], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery)):
        await failed(providers)
        assert name not in sys.modules
    both = {NOTES: Extension(), MAIL: Extension(namespace="mail")}
    with providers.attach(Browser(nursery, **both)):
        await connected(providers, 0)
        await connected(providers, 1)
        assert name in sys.modules
        assert shown(await providers.call("mail_read", args()))["content"]
