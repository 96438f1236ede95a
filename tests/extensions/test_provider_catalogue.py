"""The catalogue of providers: names, limits and reasons through the whole, and definitions any client can read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.core.sdk import check_tools
from tests.extensions.host_setting import MAIL, NOTES, OURS, Browser, Extension, args, connected, failed, shown, tool
from trio_relay.core.naming import MANAGEMENT_TOOLS
from trio_relay.core.tooldef import MAX_TOOLS
from trio_relay.extensions.catalogue import Catalogue, Offered, Shelf, read_tools
from trio_relay.extensions.host import Providers


def listed(providers: Providers) -> list[dict[str, Any]]:
    value: list[dict[str, Any]] = json.loads(b"[" + b",".join(providers.listing()) + b"]")
    return value


def raws(*tools: object) -> list[Raw]:
    return [Raw(json.dumps(item).encode()) for item in tools]


N16, N17 = "n" * 16, "n" * 17
T40, T41 = "t" * 40, "t" * 41


@pytest.mark.parametrize(
    ("namespace", "name", "reason"),
    [
        (N16, T40, None),
        (N17, "t", "the namespace has 17 characters; at most 16 are allowed"),
        ("n", T41, "the name has 41 characters; at most 40 are allowed"),
        ("page", "t", "the namespace page is reserved"),
        ("n.m", "t", "the namespace must be made of A-Z, a-z, 0-9, _ and -"),
        ("n", "t.u", "the name must be made of A-Z, a-z, 0-9, _ and -"),
        ("n", "stay", "n_stay is the name of an earlier tool of this provider"),
    ],
)
async def test_a_limit_is_exact_and_the_refused_tool_is_named(
    namespace: str, name: str, reason: str | None, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """16 + 1 + 40 are the 57 of the combined limit: a longer name always breaks one of the others first."""
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    extension = Extension(tool("stay"), tool(name), namespace=namespace)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        row = await connected(providers)
        names = [view.name for view in providers.tools()]
        if reason is None:
            assert (names, row.refused) == ([f"{namespace}_stay", f"{namespace}_{name}"], ())
            assert len(names[1]) == 57
            await providers.call(names[1], args(x=1))
            assert extension.heard[-1]["params"]["name"] == name
        else:
            assert (row.refused[-1].tool, row.refused[-1].reason) == (name, reason)
            assert names == ([] if "namespace" in reason else [f"{namespace}_stay"])


@pytest.mark.parametrize(("count", "refused"), [(64, []), (65, ["t64"])])
async def test_a_provider_has_64_tools(
    count: int, refused: list[str], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    extension = Extension(*(tool(f"t{number}") for number in range(count)))
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        row = await connected(providers)
        assert (row.tool_count, [item.tool for item in row.refused]) == (64, refused)
        assert [view.original_name for view in providers.tools()] == [f"t{number}" for number in range(64)]


async def test_the_first_provider_of_the_configuration_wins_a_name(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """And names are looked up, never taken apart: a_b + c and a + b_c are one."""
    first, second = Extension(tool("c"), namespace="a_b"), Extension(tool("b_c"), tool("d"), namespace="a")
    providers = Providers([MAIL, NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: first, MAIL: second})):
        await connected(providers, 1)
        await connected(providers, 0)
        assert [view.name for view in providers.tools()] == ["a_b_c", "a_d"]
        (refused,) = providers.rows()[1].refused
        assert (refused.tool, refused.reason) == ("c", f"a_b_c is a tool of the provider {MAIL}, which comes first")
        await providers.call("a_b_c", args())
        assert (first.count("tools/call"), second.count("tools/call")) == (0, 1)
        second.refusal, second.probe = "off", {"ok": False, "error": "Off."}
        second.ports[-1].close()
        with pytest.raises(Exception, match="Off"):
            await providers.call("a_d", args())
        await failed(providers, 0)
        assert [view.name for view in providers.tools()] == ["a_b_c"]
        assert providers.names() == {"a_b_c", "a_d"}
        await providers.call("a_b_c", args())
        assert (first.count("tools/call"), second.count("tools/call")) == (1, 1)


async def test_the_names_of_the_relay_are_never_given_away(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    extension = Extension(tool("list_sources"), tool("other"), namespace="webmcp2")
    providers = Providers([NOTES], client_id=OURS, taken=[*MANAGEMENT_TOOLS, "webmcp2_list_sources"])
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        row = await connected(providers)
        assert [item.reason for item in row.refused] == ["webmcp2_list_sources is a tool of the relay itself"]
        assert providers.names() == {"webmcp2_other"}


async def test_definitions_keep_their_members_and_say_where_they_are_from(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    extension = Extension(
        tool("a", description="Adds.", annotations={"readOnlyHint": True}, own={"none": None}),
        tool("b", inputSchema={"type": "object", "properties": {"n": {"maximum": 123456789012345678901234567890}}}),
    )
    extension.probe["service"]["name"] = "My [bad]\n\x00 Notes " + "x" * 200  # type: ignore[index]
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        await connected(providers)
        first, second = listed(providers)
        prefix = first["description"].removesuffix(" Adds.")
        assert prefix.startswith("[Extension My (bad) Notes xxx")
        assert prefix.endswith("…]")
        assert len(prefix) == 80 + len("[Extension ]")
        assert (first["name"], first["annotations"], first["own"]) == (
            "notes_a",
            {"readOnlyHint": True},
            {"none": None},
        )
        assert second["description"] == prefix
        assert second["inputSchema"]["properties"]["n"]["maximum"] == 123456789012345678901234567890
        assert [json.loads(view.definition) for view in providers.tools()] == [first, second]
        assert {view.source_ids for view in providers.tools()} == {()}
        check_tools([first, second])
        assert shown(await providers.call("notes_a", args(x=1)))["content"]


@pytest.mark.parametrize(
    ("bad", "name", "reason"),
    [
        (5, "tool 2", "not an object"),
        ({}, "tool 2", "name is missing"),
        ({"name": 5}, "tool 2", "name is missing"),
        ({"name": "x" * 2000}, "x" * 79 + "…", "longer than 1024"),
        ({"name": "x", "execution": {"taskSupport": "required"}}, "x", "task execution"),
    ],
)
def test_a_bad_definition_is_refused_alone(bad: object, name: str, reason: str) -> None:
    offered = read_tools([raws(tool("a"), bad), raws(tool("b"))])
    assert [item.name for item in offered.tools] == ["a", "b"]
    (refused,) = offered.refused
    assert refused.tool == name
    assert reason in refused.reason


def test_a_list_without_end_is_cut_and_counted() -> None:
    offered = read_tools([raws(*(tool(f"t{number}") for number in range(MAX_TOOLS + 3)))])
    assert len(offered.tools) == MAX_TOOLS
    assert [item.tool for item in offered.refused] == ["3 more"]
    huge = read_tools([raws(tool("a"), tool("b", description="x" * (2 << 20)), tool("c"))])
    assert [item.name for item in huge.tools] == ["a"]
    assert [item.tool for item in huge.refused] == ["2 more"]
    many = read_tools([raws(*([5] * 150))])
    assert len(many.refused) == 101
    assert many.refused[-1].reason == "and 50 more"


def test_two_catalogues_that_look_alike_have_one_print() -> None:
    def catalogue(*names: str) -> Catalogue:
        return Catalogue([Shelf(NOTES, "n", "N", read_tools([raws(*map(tool, names))]))])

    assert catalogue("a", "b").print == catalogue("a", "b").print
    assert catalogue("a", "b").print != catalogue("b", "a").print
    assert Catalogue().print == Catalogue([Shelf(NOTES, "n", "N", Offered())]).print
