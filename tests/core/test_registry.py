"""Sources and their tools: who is listed, under what, and where a call goes."""

from __future__ import annotations

import json

import pytest

from tests.core.desk import Desk, defined
from trio_relay.core.naming import MANAGEMENT_TOOLS
from trio_relay.core.registry import MAX_TITLE_CHARS
from trio_relay.errors import SourceNotFound, ToolNotFound


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_tab_is_listed_with_its_tools_and_gone_with_its_last_source(desk: Desk) -> None:
    """B21: 0, 0, 1."""
    desk.join("s1", "t1", "Shop")
    assert [view.tool_count for view in desk.registry.sources()] == [0]
    desk.publish("s1")
    assert [view.tool_count for view in desk.registry.sources()] == [0]
    assert desk.registry.listing() == []
    desk.publish("s1", defined("search", "Finds things", title="S"))
    assert [view.tool_count for view in desk.registry.sources()] == [1]
    assert desk.listed() == [
        {
            "name": "search",
            "description": "[WebMCP t1 • Shop] Finds things",
            "title": "S",
            "inputSchema": {"type": "object", "properties": {}},
        }
    ]
    desk.registry.remove("s1")
    assert (desk.registry.sources(), desk.registry.listing()) == ([], [])
    desk.registry.remove("s1")


def test_a_source_shows_when_it_came_and_when_it_was_seen(desk: Desk) -> None:
    desk.join("s1", "t1")
    desk.join("s1", "t1", "New title")
    desk.touch("s1")
    (view,) = desk.registry.sources()
    assert (view.connected_at, view.last_seen_at, view.title) == (1001, 1003, "New title")


def test_a_fresh_hello_shows_no_tools_of_an_earlier_socket(desk: Desk) -> None:
    """B27."""
    desk.join("s1", "t1")
    desk.publish("s1", "a")
    desk.registry.remove("s1")
    desk.join("s2", "t1")
    assert desk.names() == []
    with pytest.raises(ToolNotFound):
        desk.reach("a")
    desk.publish("s2", "a")
    assert desk.names() == ["a"]
    assert desk.reach("a") == ("s2", "a")


def test_one_tab_that_comes_back_and_two_tabs_with_one_tool_are_told_apart(desk: Desk) -> None:
    """B20."""
    for source_id, tab_id in (("s1", "t1"), ("s2", "t2")):
        desk.join(source_id, tab_id)
        desk.publish(source_id, "a")
    assert desk.names() == ["a_t1", "a_t2"]
    assert (desk.reach("a_t1"), desk.reach("a_t2"), desk.reach("a")) == (("s1", "a"), ("s2", "a"), ("s1", "a"))
    desk.registry.remove("s1")
    with pytest.raises(ToolNotFound):
        desk.reach("a")
    desk.join("s3", "t1")
    desk.publish("s3", "a")
    assert (desk.reach("a_t1"), desk.reach("a_t2")) == (("s3", "a"), ("s2", "a"))


def test_a_withdrawn_tool_is_reported_as_such(desk: Desk) -> None:
    desk.join("s1", "t1")
    desk.publish("s1", "a", "b")
    desk.publish("s1", "b")
    with pytest.raises(ToolNotFound, match="no longer offers"):
        desk.reach("a")
    with pytest.raises(ToolNotFound, match="There is no tool"):
        desk.reach("c")


def test_a_changed_tab_id_takes_the_tools_along(desk: Desk) -> None:
    """B18."""
    desk.join("s1", "t1")
    desk.publish("s1", "a")
    desk.join("other", "t1")
    desk.publish("other", "a")
    desk.join("s1", "t2")
    assert sorted(desk.names()) == ["a_t1", "a_t2"]
    assert (desk.reach("a_t1"), desk.reach("a_t2"), desk.reach("a")) == (("other", "a"), ("s1", "a"), ("other", "a"))
    assert desk.reach("a", tab_id="t2") == ("s1", "a")
    assert desk.reach("a", tab_id="t1") == ("other", "a")
    (view,) = [view for view in desk.registry.sources() if view.source_id == "s1"]
    assert (view.tab_id, view.connected_at, view.tool_count) == ("t2", 1001, 1)


def test_two_sockets_of_one_tab_share_a_name_and_the_one_seen_last_serves_it(desk: Desk) -> None:
    """WIRE 5, DECISIONS 9."""
    for source_id in ("s1", "s2"):
        desk.join(source_id, "t1")
        desk.publish(source_id, "a", f"only_{source_id}")
    assert sorted(desk.names()) == ["a", "only_s1", "only_s2"]
    assert desk.reach("a") == ("s2", "a")
    desk.touch("s1")
    assert desk.reach("a") == ("s1", "a")
    assert desk.reach("only_s2") == ("s2", "only_s2")
    assert {view.name: view.source_ids for view in desk.registry.tools()} == {
        "a": ("s1", "s2"),
        "only_s1": ("s1",),
        "only_s2": ("s2",),
    }
    desk.registry.remove("s1")
    assert desk.reach("a") == ("s2", "a")
    assert sorted(desk.names()) == ["a", "only_s2"]


def test_descriptions_show_the_title_of_the_socket_that_spoke_last_and_stay_when_another_answers_a_call(
    desk: Desk,
) -> None:
    """DECISIONS 9: being seen is no change."""
    for source_id, title in (("s1", "First"), ("s2", "Second")):
        desk.join(source_id, "t1", title)
        desk.publish(source_id, "a")
    before = desk.registry.change()
    assert desk.listed()[0]["description"] == "[WebMCP t1 • Second]"
    desk.touch("s1")
    assert desk.registry.change() == before
    assert [json.loads(view.definition) for view in desk.registry.tools()] == desk.listed()
    assert desk.listed()[0]["description"] == "[WebMCP t1 • Second]"
    desk.registry.remove("s2")
    assert desk.listed()[0]["description"] == "[WebMCP t1 • First]"


def test_recency_does_not_depend_on_the_clock(desk: Desk) -> None:
    for source_id in ("s1", "s2"):
        desk.join(source_id, "t1")
        desk.publish(source_id, "a")
    desk.registry.touch("s1", 0)
    assert desk.reach("a") == ("s1", "a")
    assert [source.source_id for source in desk.registry.newest_first()] == ["s1", "s2"]


@pytest.fixture
def three(desk: Desk) -> Desk:
    """Two sockets of tab t1 and one of t2; t2's source id is also the name of a tab."""
    for source_id, tab_id in (("s1", "t1"), ("s2", "t1"), ("t1x", "t2"), ("s4", "t1x")):
        desk.join(source_id, tab_id)
        desk.publish(source_id, "a", "a.b")
    return desk


@pytest.mark.parametrize(
    ("source_id", "tab_id", "reached"),
    [
        ("s1", None, "s1"),
        ("s2", None, "s2"),
        ("t1", None, "s2"),  # no such source: a tab id
        ("t1x", None, "t1x"),  # both: the source wins
        ("t2", None, "t1x"),
        (None, "t1", "s2"),
        (None, "t1x", "s4"),
        ("s1", "t1", "s1"),
        ("t1", "t1", "s2"),
    ],
)
def test_a_target_is_a_source_id_exactly_or_else_a_tab_id(
    three: Desk, source_id: str | None, tab_id: str | None, reached: str
) -> None:
    """WIRE 6."""
    for name in ("a", "a_t1", "a_t2"):  # public names of other tabs mean the same tool here
        assert three.reach(name, source_id, tab_id) == (reached, "a")
    assert three.reach("a.b", source_id, tab_id) == (reached, "a.b")


@pytest.mark.parametrize(
    ("source_id", "tab_id"),
    [("s9", None), (None, "t9"), (None, "s1"), ("s1", "t2"), ("t1", "t2"), ("", None), (None, "")],
)
def test_a_target_that_is_not_there_is_named(three: Desk, source_id: str | None, tab_id: str | None) -> None:
    with pytest.raises(SourceNotFound, match="webmcp_list_sources") as caught:
        three.reach("a", source_id, tab_id)
    for value in (source_id, tab_id):
        assert value is None or repr(value) in str(caught.value)


def test_a_target_without_the_tool_is_another_error(three: Desk) -> None:
    with pytest.raises(ToolNotFound, match="'t1' offers no tool 'zzz'"):
        three.reach("zzz", "t1")


def test_a_target_reaches_a_source_only_for_what_it_offers_itself(desk: Desk) -> None:
    for source_id, tool in (("s1", "a"), ("s2", "b")):
        desk.join(source_id, "t1")
        desk.publish(source_id, tool)
    with pytest.raises(ToolNotFound):
        desk.reach("b", "s1")
    assert desk.reach("b", "t1") == ("s2", "b")


def test_an_empty_target_is_none(three: Desk) -> None:
    assert three.reach("a_t2") == ("t1x", "a")


@pytest.mark.parametrize("order", [("a_t2", "a"), ("a", "a_t2")])
def test_an_own_public_name_goes_before_an_original_one(desk: Desk, order: tuple[str, str]) -> None:
    """A page whose tool is called like the public name of another of its tools."""
    desk.join("s1", "t1")
    desk.publish("s1", "a")
    desk.join("s2", "t2")
    desk.publish("s2", *order)
    own = {view.name: view.original_name for view in desk.registry.tools() if view.source_ids == ("s2",)}
    for public, original in own.items():
        assert desk.reach(public) == ("s2", original)
        assert desk.reach(public, "t2") == ("s2", original)


def test_odd_names_are_listed_valid_and_call_the_original(desk: Desk) -> None:
    """B10, B12."""
    originals = ["a.b", "a/b", "a b", "\u200b", "😀", "搜索", "__proto__", "a" * 129, *MANAGEMENT_TOOLS]
    desk.join("s1", "t1")
    desk.publish("s1", *originals)
    assert len(set(desk.names())) == len(originals)
    assert not set(desk.names()) & set(MANAGEMENT_TOOLS)
    assert {view.original_name for view in desk.registry.tools()} == set(originals)
    for view in desk.registry.tools():
        assert desk.reach(view.name) == ("s1", view.original_name)


@pytest.mark.parametrize(
    ("title", "tab_id", "prefix"),
    [
        (None, "t1", "[WebMCP t1] "),
        ("", "t1", "[WebMCP t1] "),
        (" \n ", "t1", "[WebMCP t1] "),
        ("Shop", "t1", "[WebMCP t1 • Shop] "),
        ("a]b[c", "t]1", "[WebMCP t)1 • a)b(c] "),
        ("a\nb\r\n\tc\0\x1b[0m\u2028d\u202e\u200b", "t1", "[WebMCP t1 • a b c (0m d] "),
        ("x" * 80, "t1", f"[WebMCP t1 • {'x' * 80}] "),
        ("x" * 81, "t1", f"[WebMCP t1 • {'x' * 79}…] "),
        ("😀" * 1000, "t1", f"[WebMCP t1 • {'😀' * 79}…] "),
        ("x", "t" * 300, f"[WebMCP {'t' * 79}… • x] "),
    ],
)
def test_a_title_is_harmless_in_a_description(desk: Desk, title: str | None, tab_id: str, prefix: str) -> None:
    """DECISIONS 11."""
    desk.join("s1", tab_id, title)
    desk.publish("s1", defined("a", "[x] does it"))
    assert desk.listed()[0]["description"] == f"{prefix}[x] does it"
    assert MAX_TITLE_CHARS == 80
