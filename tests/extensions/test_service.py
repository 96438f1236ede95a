"""Both sides of the extension protocol in one relay process: who owns the browser, the entry file, commands of a
person, ports of hosts. Browsers are played over real sockets."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

import trio_relay
from tests.extensions.playing import notes, open_browser
from tests.extensions.setting import eventually, probe_message
from tests.helpers import open_tab
from tests.hubs import offer
from tests.links.bridge import OTHER, open_bridge
from tests.relay.ends import EMPTY, free_range, names, text
from tests.relay.test_promotion import Member
from trio_relay.config import RelayConfig
from trio_relay.core.backend import ProviderView
from trio_relay.core.roles import Role
from trio_relay.errors import ConfigError, InvalidArguments, NotSent, PortTaken, RelayError
from trio_relay.extensions.service import ENTRY_FILE, Entry, Extensions, ExtensionSettings, open_extensions, read_entry
from trio_relay.extensions.store import ProviderStore
from trio_relay.relay.cluster import open_cluster
from trio_relay.relay.hub import Hub, open_hub
from trio_relay.surface.management import DEFINITIONS, Tools

NOTES, MAIL, HOST = "b" * 32, "c" * 32, "d" * 32
ALL = ExtensionSettings(providers=(NOTES, MAIL), serve=True)


@asynccontextmanager
async def ready_for(
    directory: Path, settings: ExtensionSettings = ALL, config: RelayConfig | None = None
) -> AsyncIterator[Extensions]:
    config = config or RelayConfig(port=0)
    async with open_extensions(settings, directory, config, lambda tabs: (Tools(tabs), DEFINITIONS)) as extensions:
        yield extensions


@asynccontextmanager
async def owner(
    directory: Path, settings: ExtensionSettings = ALL, **config: Any
) -> AsyncIterator[tuple[Hub, Extensions]]:
    """A relay that owns the browser."""
    both = RelayConfig(port=0, **config)
    async with ready_for(directory, settings, both) as extensions, open_hub(both, extending=extensions) as hub:
        yield hub, extensions


def switch(directory: Path, *allowed: str, **switches: bool) -> None:
    change = {"enabled": True, "allowed": allowed, **switches}
    ProviderStore(directory).change(lambda policy: msgspec.structs.replace(policy, **change))


def token_of(directory: Path) -> str:
    entry = read_entry(directory)
    assert entry is not None
    return entry.token


async def rows_of(extensions: Extensions, token: str) -> list[ProviderView]:
    return msgspec.json.decode(await extensions.administer(token, "providers", b"null"), type=list[ProviderView])


# -- the entry for commands


async def test_whoever_owns_the_browser_says_so_in_a_file_for_the_same_person_and_takes_it_away(tmp_path: Path) -> None:
    directory = tmp_path / "provider"
    async with ready_for(directory) as extensions:
        assert read_entry(directory) is None, "it owns nothing yet"
        async with open_hub(RelayConfig(port=0), extending=extensions) as hub:
            file = directory / ENTRY_FILE
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            entry = json.loads(file.read_text())
            assert entry.keys() == {"host", "port", "token"}
            assert (entry["host"], entry["port"]) == ("127.0.0.1", hub.port)
            assert len(entry["token"]) == 32
        assert list(directory.iterdir()) == []


async def test_each_process_has_a_token_of_its_own(tmp_path: Path) -> None:
    tokens = set()
    for _ in range(2):
        async with owner(tmp_path):
            tokens.add(token_of(tmp_path))
    assert len(tokens) == 2


async def test_the_entry_of_another_relay_is_left_alone(tmp_path: Path) -> None:
    async with owner(tmp_path):
        another = msgspec.json.encode(Entry("127.0.0.1", 1, "another"))
        (tmp_path / ENTRY_FILE).write_bytes(another)
    assert (tmp_path / ENTRY_FILE).read_bytes() == another


async def test_an_entry_that_cannot_be_written_costs_the_commands_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    async with owner(tmp_path / "file" / "provider") as (hub, _), open_tab(hub.port) as tab:
        await offer(tab, "t1", "search")
        assert names(hub) == ["search"]
    assert "commands will not find this relay" in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"host":"h","port":"1","token":"t"}', b'{"host":"\xff","port":1,"token":"t"}']
)
def test_a_file_that_is_no_entry_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ENTRY_FILE).write_bytes(content)
    assert read_entry(tmp_path) is None


# -- commands of a person


@pytest.mark.parametrize("token", ["", "wrong", "é" * 32, "\ud800", "0" * 32])
async def test_whoever_does_not_know_the_token_gets_nothing(tmp_path: Path, token: str) -> None:
    async with owner(tmp_path) as (_, extensions):
        for ask in ("providers", "reviews", "decide", "nothing"):
            with pytest.raises(NotSent, match="does not know you"):
                await extensions.administer(token, ask, b"null")


async def test_the_rows_of_providers_are_told(tmp_path: Path) -> None:
    async with owner(tmp_path) as (_, extensions):
        rows = await rows_of(extensions, token_of(tmp_path))
        assert [(row.extension_id, row.state) for row in rows] == [(NOTES, "connecting"), (MAIL, "connecting")]


@pytest.mark.parametrize("ask", ["", "nothing", "x" * 10_000, "\ud800"])
async def test_a_command_that_is_not_known_is_refused_in_short(tmp_path: Path, ask: str) -> None:
    async with owner(tmp_path) as (_, extensions):
        with pytest.raises(InvalidArguments, match="does not know the command") as caught:
            await extensions.administer(token_of(tmp_path), ask, b"null")
        assert len(str(caught.value)) < 200
        str(caught.value).encode()


@pytest.mark.parametrize("args", [b"null", b"{}", b'{"reviewId":1,"approve":true}', b'{"reviewId":"x","approve":"y"}'])
async def test_a_decision_that_is_none_is_refused(tmp_path: Path, args: bytes) -> None:
    async with owner(tmp_path) as (_, extensions):
        with pytest.raises(InvalidArguments, match="decision"):
            await extensions.administer(token_of(tmp_path), "decide", args)


async def test_a_relay_that_serves_nobody_has_no_reviews(tmp_path: Path) -> None:
    async with owner(tmp_path, ExtensionSettings(providers=(NOTES,))) as (_, extensions):
        for ask, args in (("reviews", b"null"), ("decide", b'{"reviewId":"x","approve":true}')):
            with pytest.raises(NotSent, match="--serve-extensions"):
                await extensions.administer(token_of(tmp_path), ask, args)


async def test_a_review_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    async with owner(tmp_path) as (_, extensions):
        token = token_of(tmp_path)
        assert json.loads(await extensions.administer(token, "reviews", b"null")) == []
        answer = await extensions.administer(token, "decide", b'{"reviewId":"0a1b","approve":true}')
        assert "There is no review" in json.loads(answer)


# -- the host side


async def test_tools_of_a_provider_are_listed_and_callable_and_gone_ones_tell_why(tmp_path: Path) -> None:
    async with owner(tmp_path) as (hub, extensions), open_browser(hub.port, {NOTES: notes()}) as browser:
        await eventually(lambda: names(hub) == ["notes_read", "notes_write"])
        assert json.loads(await text(hub, "notes_write")) == {}
        assert [call["name"] for call in browser.called] == ["write"]
        connected, missing = await rows_of(extensions, token_of(tmp_path))
        assert (connected.state, connected.tool_count) == ("connected", 2)
        assert (missing.state, missing.outcome) == ("error", "Extension not installed, or no agent endpoint.")
        assert hub.provider_rows() == [connected, missing]


async def test_a_second_browser_takes_over_when_the_first_one_goes(tmp_path: Path) -> None:
    async with owner(tmp_path) as (hub, _), open_browser(hub.port, {NOTES: notes()}) as second:
        await eventually(lambda: len(names(hub)) == 2)
        async with open_browser(
            hub.port, {NOTES: notes(), MAIL: notes() | {"service": {"namespace": "mail"}}}
        ) as first:
            await eventually(lambda: hub.provider_rows()[1].state == "error")
            await text(hub, "notes_read")
            assert (len(first.called), len(second.called)) == (0, 1)


# -- the provider side


async def test_without_serve_nobody_is_answered(tmp_path: Path) -> None:
    settings = ExtensionSettings(providers=(NOTES,))
    async with owner(tmp_path, settings) as (hub, _), open_browser(hub.port) as browser:
        assert browser.hello["serves"] is False
        answer = await browser.probe(HOST, json.loads(probe_message()))
        assert answer["error"]["kind"] == "failed"
        host = await browser.host(HOST)
        assert "serves no extensions" in (await host.frame("port/refused"))["reason"]
        assert ProviderStore(tmp_path).pending() == ()


async def test_a_relay_that_only_serves_has_no_rows_and_answers(tmp_path: Path) -> None:
    settings = ExtensionSettings(serve=True, namespace="mine")
    async with owner(tmp_path, settings) as (hub, extensions), open_browser(hub.port) as browser:
        assert browser.hello["serves"] is True
        assert await rows_of(extensions, token_of(tmp_path)) == []
        answer = (await browser.probe(HOST, json.loads(probe_message())))["response"]
        assert answer["service"] == {"namespace": "mine", "name": "trio-relay", "version": trio_relay.__version__}
        assert answer["status"]["enabled"] is False
        assert ProviderStore(tmp_path).pending() == (), "while the endpoint is off, nobody is noted"
        switch(tmp_path)
        answer = (await browser.probe(HOST, json.loads(probe_message())))["response"]
        assert answer["status"]["pendingApproval"] is True
        (caller,) = ProviderStore(tmp_path).pending()
        assert (caller.extension_id, caller.name) == (HOST, "Lumo")


async def test_a_port_of_another_name_is_closed_with_the_reason(tmp_path: Path) -> None:
    async with owner(tmp_path) as (hub, _), open_browser(hub.port) as browser:
        host = await browser.host(HOST, "other")
        assert (await host.frame("port/close"))["error"] == "there is only the port lumo:mcp here"


async def test_a_host_sees_the_tools_of_tabs_and_none_of_other_extensions(tmp_path: Path) -> None:
    switch(tmp_path, HOST)
    async with (
        owner(tmp_path) as (hub, _),
        open_browser(hub.port, {NOTES: notes()}) as browser,
        open_tab(hub.port) as tab,
        trio.open_nursery() as nursery,
    ):
        await offer(tab, "t1", "search", {"name": "look", "annotations": {"readOnlyHint": True}})
        await eventually(lambda: len(names(hub)) == 4)
        host = await browser.host(HOST)
        await host.initialize()
        assert await host.tool_names() == [*(entry["name"] for entry in DEFINITIONS), "search", "look"]
        nursery.start_soon(tab.serve)
        assert "isError" not in await host.call("look")
        for name, arguments in (
            ("notes_read", {}),
            ("webmcp_tool_call", {"toolName": "notes_read"}),
            ("search", {}),  # writes are off
        ):
            assert (await host.call(name, **arguments))["isError"] is True
        listed = await host.call("webmcp_list_sources")
        assert "providers" not in listed["structuredContent"]
        assert browser.called == []
        nursery.cancel_scope.cancel()


async def test_a_host_on_a_browser_that_is_not_ours_gets_no_tunnel(tmp_path: Path) -> None:
    async with owner(tmp_path) as (hub, _), open_bridge(hub.port, f"chrome-extension://{OTHER}") as bridge:
        closed = await bridge.closed()
        assert closed.code == 1008


async def test_longer_answers_than_a_frame_are_errors_and_the_port_stays(tmp_path: Path) -> None:
    switch(tmp_path, HOST)
    async with (
        owner(tmp_path, max_payload=100_000) as (hub, _),
        open_browser(hub.port) as browser,
        open_tab(hub.port) as tab,
        trio.open_nursery() as nursery,
    ):
        await offer(tab, "t1", {"name": "look", "annotations": {"readOnlyHint": True}})
        size = 99_500
        nursery.start_soon(tab.serve, lambda invoke: {"content": [{"type": "text", "text": "x" * size}]})
        host = await browser.host(HOST)
        await host.initialize()
        answer = await host.answer(await host.ask("tools/call", name="look", arguments={}))
        assert "error" in answer or answer["result"]["isError"], answer
        size = 90_000
        assert "isError" not in await host.call("look")
        nursery.cancel_scope.cancel()


# -- taking over


async def test_after_a_promotion_the_new_owner_serves_and_is_found(tmp_path: Path, nursery: trio.Nursery) -> None:
    config = RelayConfig(port=free_range(1)[0], fixed_port=True)
    switch(tmp_path, HOST)

    async def first(*, task_status: trio.TaskStatus[Member]) -> None:
        async with (
            ready_for(tmp_path, ALL, config) as extensions,
            open_cluster(config, extending=extensions) as cluster,
        ):
            member = Member(cluster)
            task_status.started(member)
            await member._leave.wait()
        member._left.set()

    member: Member = await nursery.start(first)
    old_token = token_of(tmp_path)
    async with ready_for(tmp_path, ALL, config) as extensions, open_cluster(config, extending=extensions) as cluster:
        async with open_browser(config.port, {NOTES: notes()}):
            await eventually(lambda: len(names(cluster)) == 2)
            with pytest.raises(RelayError):
                await extensions.administer(old_token, "providers", b"null")
            await member.leave()
        await eventually(lambda: cluster.roles.role is Role.SERVER)
        assert token_of(tmp_path) != old_token
        nursery.start_soon(text, cluster, "notes_read")  # waits for a browser
        await trio.testing.wait_all_tasks_blocked()
        before = cluster.change()
        async with open_browser(config.port, {NOTES: notes()}) as browser:
            await eventually(lambda: len(browser.called) == 1)
            assert names(cluster) == ["notes_read", "notes_write"]
            assert cluster.change() == before, "a client need not list again"
            await cluster.call("notes_read", EMPTY)
            host = await browser.host(HOST)
            await host.initialize()
            assert len(await host.tool_names()) == len(DEFINITIONS)
            assert (await rows_of(extensions, token_of(tmp_path)))[0].state == "connected"
    assert read_entry(tmp_path) is None


# -- embedding


async def test_errors_of_a_relay_inside_the_block_come_as_they_are(tmp_path: Path) -> None:
    async with open_hub(RelayConfig(port=0)) as hub:
        with pytest.raises(PortTaken):
            async with ready_for(tmp_path) as extensions, open_hub(RelayConfig(port=hub.port), extending=extensions):
                pass


async def test_an_embedder_opens_a_relay_with_them(tmp_path: Path) -> None:
    config = RelayConfig(port=free_range(1)[0], fixed_port=True)
    async with (
        ready_for(tmp_path, ALL, config) as extensions,
        trio_relay.open_relay(config, extending=extensions) as relay,
        open_browser(relay.port, {NOTES: notes()}),
    ):
        await eventually(lambda: len(relay.view().tools) == 2)
        assert await relay.call_tool("notes_read", {"n": 1}) == {"content": [{"type": "text", "text": '{"n": 1}'}]}


@pytest.mark.parametrize(
    "settings",
    [
        ExtensionSettings(providers=("short",)),
        ExtensionSettings(serve=True, namespace="browser"),
        ExtensionSettings(serve=True, namespace="x" * 17),
        ExtensionSettings(serve=True, namespace="a b"),
        ExtensionSettings(serve=True, namespace=""),
    ],
    ids=str,
)
async def test_ids_and_namespaces_that_cannot_be_used_are_refused_at_the_start(
    tmp_path: Path, settings: ExtensionSettings
) -> None:
    with pytest.raises(ConfigError):
        async with ready_for(tmp_path, settings):
            pass
