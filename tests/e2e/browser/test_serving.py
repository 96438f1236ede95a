"""The relay as a provider for a host extension in a real browser: who may have a session, and what ends one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.browser.serving_setting import ProviderStage, load_host, open_provider_stage, probe_status
from tests.e2e.browser.setting import EXTENSION_ID, open_relay, text_of, until
from tests.e2e.browser.site import ECHO
from tests.e2e.test_cluster import wait_mode
from trio_relay._version import __version__

pytestmark = [pytest.mark.chromium, pytest.mark.npm]

MANAGEMENT = ["webmcp_list_sources", "webmcp_list_tools", "webmcp_open_page", "webmcp_tool_call"]
OFF = "Agent access is turned off in this provider."
NOT_ALLOWED = "This caller is not on the allowlist of this provider."


async def refused_session(stage: ProviderStage) -> None:
    """A port is opened, and closed by the relay."""
    assert "error" in await stage.connect()
    assert await stage.host.run("closed")


async def has_pending(stage: ProviderStage, extension_id: str) -> bool:
    return [caller.extension_id for caller in stage.store.pending()] == [extension_id]


async def test_a_host_is_off_then_pending_then_approved_and_the_commands_hold_at_once(tmp_path: Path) -> None:
    async with open_provider_stage(tmp_path, "--serve-namespace", "tabs") as stage:
        host = stage.host
        assert await stage.probe() == {
            "ok": True,
            "service": {"namespace": "tabs", "name": "trio-relay", "version": __version__},
            "status": {"enabled": False, "authorized": False, "ready": True, "pendingApproval": False},
        }
        failure = {"ok": False, "error": "Only probe version 1 is spoken here."}
        assert await host.run("probe", EXTENSION_ID, {"version": 2}) == failure
        await refused_session(stage)
        assert stage.store.pending() == ()

        await stage.provider("enable")
        lie = {"client": {"id": "a" * 32, "name": "Trusted\nOne", "version": "9"}}
        assert probe_status(await host.run("probe", EXTENSION_ID, lie)) == "pending"
        assert f"{host.id}  " in (pending := await stage.provider("pending"))
        assert 'calls itself "Trusted One" 9' in pending
        assert lie["client"]["id"] not in pending

        await stage.provider("approve", host.id)
        assert probe_status(await stage.probe()) == "authorized"
        connected = (await stage.connect())["result"]
        assert connected["server"]["name"] == "trio-relay"
        assert "turned off at the moment" in connected["instructions"]  # writes
        assert await stage.tool_names() == MANAGEMENT
        await stage.show(ECHO, "echo")
        await host.until("changes")
        assert await stage.tool_names() == [*MANAGEMENT, "echo"]
        assert text_of(await host.call("echo", q="é")) == 'echo {"q":"é"}'
        sources = (await host.call("webmcp_list_sources"))["structuredContent"]["sources"]
        assert [source["toolCount"] for source in sources] == [1]

        await stage.provider("disable")
        assert probe_status(await stage.probe()) == "off"
        refused = await host.call("echo", q=1)
        assert (refused["isError"], text_of(refused)) == (True, OFF)
        assert OFF in (await host.run("listTools"))["error"]["message"]
        await stage.provider("enable")
        assert text_of(await host.call("echo", q=2)) == 'echo {"q":2}'  # over the same port

        await stage.provider("deny", host.id)
        assert probe_status(await stage.probe()) == "not allowed"
        assert text_of(await host.call("echo", q=3)) == NOT_ALLOWED
        await refused_session(stage)
        await stage.provider("allow", host.id)
        assert "result" in await stage.connect("legacy")
        assert text_of(await host.call("echo", q=4)) == 'echo {"q":4}'

        late = await load_host(stage.browser, tmp_path / "late")
        await late.run("beginConnect", EXTENSION_ID)
        await until(lambda: has_pending(stage, late.id))
        assert await late.run("connected") is None  # its port is held
        await stage.provider("approve", late.id)
        assert "result" in await late.until("connected")
        assert text_of(await late.call("echo", q=5)) == 'echo {"q":5}'


async def test_the_worker_in_between_and_the_relay_may_go_and_the_host_connects_anew(tmp_path: Path) -> None:
    async with open_provider_stage(tmp_path) as stage:
        stage.allow()
        await stage.show(ECHO, "echo")
        assert "result" in await stage.connect()
        await stage.browser.kill_worker()
        await stage.host.until("closed")
        assert "result" in await stage.connect()  # which wakes it
        await stage.relay.wait_tools("echo")
        assert text_of(await stage.host.call("echo", q=1)) == 'echo {"q":1}'

        stage.relay.process.kill()
        await stage.relay.wait()
        await stage.host.until("closed")
        async with open_relay(tmp_path, "--serve-extensions", port=stage.relay.port) as again:
            await again.wait_tools("echo")  # the page's tab has found it
            await until(lambda: stage.probe_is("authorized"))
            assert "result" in await stage.connect()
            assert text_of(await stage.host.call("echo", q=2)) == 'echo {"q":2}'


async def test_a_relay_that_takes_over_serves_under_the_same_policy_and_the_commands_reach_it(tmp_path: Path) -> None:
    async with (
        open_provider_stage(tmp_path) as stage,
        open_relay(tmp_path, "--serve-extensions", port=stage.relay.port) as client,
    ):
        stage.allow(writes=True, review=True)
        await stage.show(ECHO.replace("readOnlyHint", "otherHint"), "echo")
        assert "result" in await stage.connect()
        await stage.host.run("callTool", "echo", {"q": 1}, "lost")
        review = await stage.review()
        stage.relay.process.kill()
        await stage.relay.wait()
        assert "error" in await stage.host.outcome("lost")
        await wait_mode(client, "server")
        await client.wait_tools("echo")
        await until(lambda: stage.probe_is("authorized"))
        assert "There is no review" in await stage.provider("review", "approve", review)
        assert "result" in await stage.connect()
        await stage.host.run("callTool", "echo", {"q": 2}, "kept")
        await stage.provider("review", "approve", await stage.review(after=review))
        assert text_of((await stage.host.outcome("kept"))["result"]) == 'echo {"q":2}'


async def test_a_relay_that_does_not_serve_gives_no_answer(tmp_path: Path) -> None:
    async with open_provider_stage(tmp_path, serve=False) as stage:
        answer = await stage.probe()
        assert answer is None or "timeout" in answer or "rejected" in answer
        await refused_session(stage)
