"""The relay's own catalogue as a provider serves it: what fits the limits, what is a write, which tab is meant."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client
from msgspec import Raw

from tests.core.desk import Desk as Tabs
from tests.core.desk import defined
from tests.extensions.setting import ERAS, HOST, PATIENCE, Desk, refused, text_of
from trio_relay.core.backend import SourceView, Target
from trio_relay.core.pending import OnProgress, Progress
from trio_relay.core.policy import REASONS, Policy, Refusal
from trio_relay.core.registry import Source
from trio_relay.core.results import CallResult
from trio_relay.core.tooldef import ToolDef
from trio_relay.errors import ConfigError, SourceLost
from trio_relay.extensions.gate import Facts
from trio_relay.extensions.relay_tools import RelayTools, instructions
from trio_relay.relay.changes import Followed
from trio_relay.surface.management import DEFINITIONS, Tools

MANAGEMENT = [definition["name"] for definition in DEFINITIONS]


class Backend(Followed):
    """Tabs in a registry; a call answers with the source and the page's own name it reached."""

    def __init__(self) -> None:
        self.tabs = Tabs()
        super().__init__(self.tabs.registry)
        self.opened: list[str] = []

    def join(self, source_id: str, tab_id: str, *tools: ToolDef | str) -> None:
        self.tabs.join(source_id, tab_id)
        self.tabs.publish(source_id, *tools)
        self.bell.ring()

    def call(
        self, name: str, args: Raw, *, target: Target | None = None, on_progress: OnProgress | None = None
    ) -> Awaitable[CallResult]:
        source, tool = self.registry.resolve(name, target)
        return self._answer(f"{source.source_id} {tool.name} {bytes(args).decode()}", tool.name, on_progress)

    async def _answer(self, text: str, name: str, on_progress: OnProgress | None) -> CallResult:
        await trio.lowlevel.checkpoint()
        if name == "gone":
            raise SourceLost("The tab went away.")
        if on_progress is not None:
            on_progress(Progress(b"1", b"2", b'"half"'))
        return CallResult((json.dumps({"content": [{"type": "text", "text": text}]}).encode(),))

    def refresh(self, origin: str) -> SourceView:
        raise NotImplementedError

    def open_in_browser(self, url: str) -> bool:
        self.opened.append(url)
        return True

    def info(self) -> dict[str, Any]:
        return {"mode": "server"}


def read_only(name: str) -> ToolDef:
    return defined(name, annotations={"readOnlyHint": True})


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def relay(backend: Backend) -> RelayTools:
    return RelayTools(backend, Tools(backend), DEFINITIONS)


@pytest.fixture
def desk(tmp_path: Path, relay: RelayTools) -> Desk:
    desk = Desk(tmp_path / "provider", factory=relay)
    desk.switch(enabled=True)
    desk.store.allow(HOST)
    return desk


async def names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


# -- what is listed


@pytest.mark.parametrize("era", ERAS)
async def test_management_tools_and_tools_of_tabs_are_served_under_bare_names(
    desk: Desk, backend: Backend, era: str
) -> None:
    backend.join("s1", "1", "save", read_only("look"))
    desk.switch(writes=True)
    async with desk.client(era) as client:
        assert await names(client) == [*MANAGEMENT, "save", "look"]
        assert text_of(await client.call_tool("look", {"a": 1})) == 's1 look {"a":1}'
        assert text_of(await client.call_tool("save", {})) == "s1 save {}"
        result = await client.call_tool("webmcp_list_sources", {})
        assert result.structured_content is not None
        assert result.structured_content["count"] == 1
    assert [(event, tool) for event, tool, _ in desk.lines()] == [("intent", "save"), ("outcome", "save")]
    assert {json.loads(line)["target"] for line in desk.audit.path.read_text().splitlines()} == {"s1"}


async def test_64_tools_are_served_in_the_order_of_connection_and_the_65th_is_reached_all_the_same(
    desk: Desk, backend: Backend, relay: RelayTools
) -> None:
    backend.join("s2", "2", *(f"b{number}" for number in range(40)))
    backend.join("s1", "1", *(read_only(f"a{number}") for number in range(21)))
    async with desk.client() as client:
        listed = await names(client)
        assert len(listed) == 64
        assert listed[4:] == [f"b{number}" for number in range(40)] + [f"a{number}" for number in range(20)]
        assert [(tool.tool, tool.reason) for tool in relay.refused()] == [("a20", "a provider may have 64 tools")]
        assert "webmcp_tool_call" in await refused(client, "a20")
        assert text_of(await client.call_tool("webmcp_tool_call", {"toolName": "a20"})) == "s1 a20 {}"


async def test_names_that_are_too_long_are_refused_and_the_others_stay(
    desk: Desk, backend: Backend, relay: RelayTools
) -> None:
    backend.join("s1", "1", read_only("x" * 41), read_only("y" * 40), read_only("z"))
    async with desk.client() as client:
        assert (await names(client))[4:] == ["y" * 40, "z"]
        (tool,) = relay.refused()
        assert (tool.tool, "41 characters" in tool.reason) == ("x" * 41, True)
        arguments = {"toolName": "x" * 41, "args": {"n": 1}}
        assert text_of(await client.call_tool("webmcp_tool_call", arguments)) == "s1 " + "x" * 41 + ' {"n":1}'


def test_the_combined_length_counts_the_namespace(backend: Backend) -> None:
    backend.join("s1", "1", "y" * 40)
    long = RelayTools(backend, Tools(backend), DEFINITIONS, namespace="n" * 16)
    assert long.refused() == ()
    assert RelayTools(backend, Tools(backend), DEFINITIONS, namespace="n").serves("y" * 40)


@pytest.mark.parametrize("namespace", ["", "n" * 17, "browser", "a b", "ünder"])
def test_a_namespace_that_hosts_would_refuse_is_refused_here(backend: Backend, namespace: str) -> None:
    with pytest.raises(ConfigError, match="--serve-namespace"):
        RelayTools(backend, Tools(backend), DEFINITIONS, namespace=namespace)


@pytest.mark.parametrize("era", ERAS)
async def test_a_change_of_the_list_is_told(desk: Desk, backend: Backend, era: str) -> None:
    told = trio.Event()

    async def listen(message: Any) -> None:
        if (
            "ToolListChanged" in type(message).__name__
            or "ToolListChanged" in type(getattr(message, "root", 0)).__name__
        ):
            told.set()

    with trio.fail_after(PATIENCE):
        if era == "legacy":
            async with desk.client(era, message_handler=listen) as client:
                await client.list_tools()
                backend.join("s1", "1", "save")
                await told.wait()
                assert "save" in await names(client)
            return
        async with desk.client(era) as client, client.listen(tools_list_changed=True) as events:
            backend.join("s1", "1", "save")
            await anext(aiter(events))
            assert "save" in await names(client)


async def test_progress_reaches_the_host(desk: Desk, backend: Backend) -> None:
    backend.join("s1", "1", read_only("look"))
    heard: list[tuple[float, float | None, str | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with desk.client() as client:
        await client.call_tool("look", {}, progress_callback=listen)
    assert heard == [(1.0, 2.0, "half")]


async def test_an_error_of_the_relay_is_a_result(desk: Desk, backend: Backend) -> None:
    backend.join("s1", "1", "gone")
    desk.switch(writes=True)
    async with desk.client() as client:
        assert await refused(client, "gone") == "The tab went away."
        assert "There is no tool 'nothing' here" in await refused(client, "nothing")
    assert desk.lines()[:2] == [("intent", "gone", "started"), ("outcome", "gone", "failed")]


# -- what is a write


async def test_read_only_management_tools_are_reads_and_opening_a_page_is_a_write(desk: Desk, backend: Backend) -> None:
    async with desk.client() as client:
        for name in ("webmcp_list_sources", "webmcp_list_tools"):
            assert (await client.call_tool(name, {})).is_error is not True
        result = await client.call_tool("webmcp_open_page", {"url": "https://a.example/"})
        assert text_of(result) == REASONS[Refusal.WRITES_OFF]
    assert backend.opened == []


async def test_an_indirect_call_counts_as_the_tool_it_calls(desk: Desk, backend: Backend) -> None:
    backend.join("s1", "1", "save", read_only("look"))
    async with desk.client() as client:
        look = await client.call_tool("webmcp_tool_call", {"toolName": "look", "sourceId": "s1"})
        save = await client.call_tool("webmcp_tool_call", {"toolName": "save", "sourceId": "s1"})
    assert text_of(look) == "s1 look {}"
    assert text_of(save) == REASONS[Refusal.WRITES_OFF]
    (line,) = [json.loads(line) for line in desk.audit.path.read_text().splitlines()]
    assert (line["tool"], line["target"]) == ("webmcp_tool_call", "s1")


WRITE, READ = True, False


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"toolName": "look"}, Facts(READ, "s1")),
        ({"toolName": "look", "requestTabId": 1}, Facts(READ, "s1")),
        ({"toolName": "save"}, Facts(WRITE, "s1")),
        ({"toolName": "both_1"}, Facts(READ, "s1")),
        ({"toolName": "both_2"}, Facts(WRITE, "s2")),
        # The name of the read-only one, in the tab where it is not.
        ({"toolName": "both_1", "sourceId": "s2"}, Facts(WRITE, "s2")),
        ({"toolName": "both_1", "sourceId": "2"}, Facts(WRITE, "s2")),
        ({"toolName": "both", "sourceId": "s1"}, Facts(WRITE, "s1")),
        ({"toolName": "nothing"}, Facts(WRITE, "")),
        ({"toolName": "webmcp_list_tools"}, Facts(WRITE, "")),
        ({"toolName": 5}, Facts(WRITE, "")),
        ({}, Facts(WRITE, "")),
        ({"toolName": "look", "args": []}, Facts(WRITE, "")),
        ({"toolName": "look", "sourceId": "nowhere"}, Facts(READ, "")),
    ],
)
def test_in_doubt_an_indirect_call_is_a_write(
    backend: Backend, relay: RelayTools, arguments: dict[str, Any], facts: Facts
) -> None:
    backend.join("s1", "1", read_only("look"), read_only("both"), "save")
    backend.join("s2", "2", "both")
    assert relay.describe("webmcp_tool_call", arguments) == facts


def test_the_person_who_decides_reads_which_page_it_is(backend: Backend, relay: RelayTools) -> None:
    """Names of tools say little (`search_ed93`); a title is a page's own words, and cannot move the cursor."""
    backend.tabs.registry.join(Source("s1", "1", 1, 1, title="Shop\x1b[2J\nof tea", origin="https://shop.example"), 1)
    backend.tabs.publish("s1", "save")
    where = relay.describe("save", {}).where
    assert where.endswith("of tea (https://shop.example)")
    assert where.isprintable()
    assert relay.describe("webmcp_tool_call", {"toolName": "save"}).where == where
    assert relay.describe("webmcp_open_page", {}).where == ""


def test_an_earlier_name_of_a_write_cannot_be_passed_off_as_a_read(backend: Backend, relay: RelayTools) -> None:
    backend.join("s1", "1", "a b")  # listed as a_b, until
    backend.join("s2", "2", read_only("a b"))  # both have a suffix; a_b still reaches the first
    backend.join("s3", "3", read_only("a_b"))
    for target in ({}, {"sourceId": "s1"}, {"requestTabId": "1"}):
        arguments = {"toolName": "a_b", **target}
        reached = backend.registry.resolve("a_b", Target(target.get("sourceId"), target.get("requestTabId")))
        assert reached[1].name == "a b", "else this test holds nothing"
        assert relay.describe("webmcp_tool_call", arguments).write is True


# -- instructions


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(enabled=True), "turned off"),
        (Policy(enabled=True, writes=True), "30 times in any 60 seconds."),
        (Policy(enabled=True, writes=True, review=True), "waits until the user approves it"),
    ],
)
def test_the_instructions_state_the_policy(policy: Policy, words: str) -> None:
    assert words in instructions(policy)


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_is_told_the_policy_of_its_beginning(desk: Desk, era: str) -> None:
    desk.switch(writes=True, review=True)
    mode = "legacy" if era == "legacy" else "auto"
    async with desk.client(mode) as client:
        assert "waits until the user approves it" in (client.instructions or "")
