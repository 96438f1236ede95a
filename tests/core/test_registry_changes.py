"""What counts as a visible change of the catalogue: fingerprints and kept listings, over any history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.desk import Desk, defined
from trio_relay.core.backend import Change
from trio_relay.core.registry import Registry
from trio_relay.core.tooldef import ToolDef


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_same_tools_again_are_no_change(desk: Desk) -> None:
    desk.join("s1", "t1", "T")
    tools = [defined("a", "d", x=1), defined("b")]
    desk.publish("s1", *tools)
    before = desk.registry.change()
    for again in (tools, tools[::-1]):
        desk.publish("s1", *again)
        assert desk.registry.change() == before
    desk.join("s1", "t1", "T")
    desk.touch("s1")
    assert desk.registry.change() == before


def test_a_tab_without_tools_is_no_change(desk: Desk) -> None:
    """B21: exactly one change, when the tool comes."""
    before = desk.registry.change()
    desk.join("s1", "t1", "T")
    desk.publish("s1")
    desk.join("s1", "t1", "U")
    assert desk.registry.change() == before
    desk.publish("s1", "a")
    assert desk.registry.change() != before
    desk.registry.remove("s1")
    assert desk.registry.change() == before


def test_a_title_alone_changes_titles_alone(desk: Desk) -> None:
    """DECISIONS 11."""
    desk.join("s1", "t1", "T")
    desk.publish("s1", "a")
    before = desk.registry.change()
    desk.join("s1", "t1", "U")
    after = desk.registry.change()
    assert after.names == before.names
    assert after.titles != before.titles
    assert "• U]" in desk.listed()[0]["description"]
    desk.join("s1", "t1", "T")
    assert desk.registry.change() == before


@pytest.mark.parametrize(
    "changed", [defined("b"), defined("a", "other"), defined("a", x=1), defined("a", inputSchema={"title": "x"})]
)
def test_any_other_difference_changes_names(desk: Desk, changed: ToolDef) -> None:
    desk.join("s1", "t1", "T")
    desk.publish("s1", "a")
    before = desk.registry.change()
    desk.publish("s1", changed)
    assert desk.registry.change().names != before.names
    assert desk.registry.change().titles == before.titles


def test_a_second_tab_changes_the_listed_name_of_the_first(desk: Desk) -> None:
    desk.join("s1", "t1")
    desk.publish("s1", "a")
    assert desk.names() == ["a"]
    desk.join("s2", "t2")
    desk.publish("s2", "a")
    assert desk.names() == ["a_t1", "a_t2"]


def test_a_listing_is_built_once_per_change(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work per change is in proportion to the tab it is about."""
    for number in range(50):
        desk.join(f"s{number}", f"t{number}")
        desk.publish(f"s{number}", f"tool{number}", f"more{number}")
    desk.registry.listing()
    built: list[str] = []
    original = Registry._define

    def counting(self: Registry, tab: Any, tool: ToolDef) -> bytes:
        built.append(tool.name)
        return original(self, tab, tool)

    monkeypatch.setattr(Registry, "_define", counting)
    desk.touch("s1")
    desk.registry.listing()
    assert built == []
    desk.publish("s7", "tool7", "new7")
    desk.registry.listing()
    assert built == ["tool7", "new7"]


SOURCES = ("s1", "s2", "s3", "t1")
TABS = ("t1", "t2", "t2x", "s1")
DEFINITIONS = (defined("a"), defined("a", "other"), defined("a.b"), defined("a_t1"), defined("b", x=1))
events = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(SOURCES), st.sampled_from(TABS), st.sampled_from((None, "T", "U"))),
        st.tuples(st.just("publish"), st.sampled_from(SOURCES), st.lists(st.sampled_from(DEFINITIONS), min_size=1)),
        st.tuples(st.just("publish"), st.sampled_from(SOURCES), st.lists(st.sampled_from(DEFINITIONS), max_size=4)),
        st.tuples(st.just("touch"), st.sampled_from(SOURCES)),
        st.tuples(st.just("remove"), st.sampled_from(SOURCES)),
    ),
    min_size=4,
    max_size=25,
)


def visible(registry: Registry) -> list[tuple[str, bytes]]:
    """The catalogue as clients see it, as a value that does not depend on order."""
    return sorted((view.name, view.definition) for view in registry.tools())


def apply(desk: Desk, event: tuple[Any, ...]) -> None:
    action, source_id, *rest = event
    if action == "join":
        desk.join(source_id, *rest)
        return
    if desk.registry.source(source_id) is None:
        desk.join(source_id, TABS[SOURCES.index(source_id) // 2])
    if action == "publish":
        desk.publish(source_id, *{tool.name: tool for tool in rest[0]}.values())
    elif action == "touch":
        desk.touch(source_id)
    else:
        desk.registry.remove(source_id)


@given(events)
@settings(max_examples=300)
def test_fingerprints_change_exactly_when_a_client_would_see_a_difference(log: list[tuple[Any, ...]]) -> None:
    desk = Desk()
    registry = desk.registry
    seen: dict[Change, object] = {registry.change(): visible(registry)}
    prints = {repr(visible(registry)): registry.change()}
    for event in log:
        registry.listing()  # kept bytes must not grow stale
        apply(desk, event)
        now, shown = registry.change(), visible(registry)
        assert b",".join(registry.listing()) == b",".join(view.definition for view in registry.tools())
        assert seen.setdefault(now, shown) == shown, "the same fingerprint for another catalogue"
        assert prints.setdefault(repr(shown), now) == now, "another fingerprint for the same catalogue"
        for view in registry.tools():
            source, tool = registry.resolve(view.name)
            assert (source.source_id, tool.name) == (view.source_ids[0], view.original_name)
    for source_id in SOURCES:
        registry.remove(source_id)
    assert registry.change() == Registry().change()
    assert (registry.sources(), registry.listing(), registry._tabs) == ([], [], {})


@given(events)
@settings(max_examples=200)
def test_a_registry_built_afresh_has_the_same_fingerprints_where_names_agree(log: list[tuple[Any, ...]]) -> None:
    desk = Desk()
    for event in log:
        apply(desk, event)
    fresh = Desk()
    for source in reversed(desk.registry.newest_first()):
        fresh.join(source.source_id, source.tab_id, source.title)
        fresh.publish(source.source_id, *source.tools.values())
    if visible(fresh.registry) == visible(desk.registry):
        assert fresh.registry.change() == desk.registry.change()
    assert len(fresh.names()) == len(desk.names())
