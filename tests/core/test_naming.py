"""Public names: the rule as tables, and as a property over any sequence of tabs coming, changing and going."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_relay.core import naming
from trio_relay.core.naming import MANAGEMENT_TOOLS, MAX_NAME, MAX_REMEMBERED, Key, Names

VALID = re.compile(r"[A-Za-z0-9_]{1,128}")


def named(*tabs: tuple[str, Iterable[str]]) -> tuple[Names, list[str]]:
    """Names after these tabs came in this order, and the public names of all their tools."""
    names = Names()
    for tab, tools in tabs:
        names.add(tab, tools)
    return names, [names.public(Key(tool, tab)) for tab, tools in tabs for tool in tools]


@pytest.mark.parametrize(
    ("tabs", "expected"),
    [
        ([("t1", ["search"])], ["search"]),
        ([("t1", ["search"]), ("t2", ["search"])], ["search_t1", "search_t2"]),
        ([("12345", ["a"]), ("12399", ["a"])], ["a_1234", "a_1239"]),
        ([("12345", ["a"]), ("12346", ["a"])], ["a_1234", "a_1234_2"]),
        ([("12345", ["a"]), ("12346", ["a"]), ("12347", ["a"])], ["a_1234", "a_1234_2", "a_1234_3"]),
        ([("é.", ["a"]), ("😀", ["a"])], ["a___", "a__"]),
        ([("t", ["a.b", "a/b"])], ["a_b", "a_b_2"]),
        ([("t", ["a/b", "a.b"])], ["a_b_2", "a_b"]),
        ([("t1", ["a.b"]), ("t2", ["a/b"])], ["a_b", "a_b_2"]),
        ([("t", ["a b", "\u200b", "😀", "搜索", "__proto__"])], ["a_b", "_", "__2", "__", "__proto__"]),
        ([("t", ["a" * 129])], ["a" * 128]),
        ([("t", ["a" * 128, "a" * 129])], ["a" * 128, "a" * 126 + "_2"]),
        ([("t1", ["a" * 128]), ("t2", ["a" * 128])], ["a" * 125 + "_t1", "a" * 125 + "_t2"]),
        ([("t1", ["a_t2", "a"]), ("t2", ["a"])], ["a_t2", "a_t1", "a_t2_2"]),
        ([("t1", ["x"]), ("t2", ["y"])], ["x", "y"]),
    ],
)
def test_the_rule(tabs: list[tuple[str, list[str]]], expected: list[str]) -> None:
    """WIRE 5, B10."""
    assert named(*tabs)[1] == expected


@pytest.mark.parametrize("name", MANAGEMENT_TOOLS)
def test_a_page_never_takes_a_management_name(name: str) -> None:
    assert named(("t", [name]))[1] == [f"{name}_2"]
    assert named(("t", [name.replace("_", ".")]))[1] == [f"{name}_2"]


def test_a_bare_name_retired_by_a_second_tab_still_reaches_the_first_and_nobody_else_gets_it() -> None:
    """DECISIONS 8."""
    names, _ = named(("t1", ["a"]))
    assert names.add("t2", ["a"]) == [Key("a", "t1")]
    assert names.resolve("a") == Key("a", "t1")
    assert names.add("t3", ["a"]) == []
    assert names.public(Key("a", "t3")) == "a_t3"
    names.forget("t1")
    assert names.resolve("a") is None
    assert names.resolve("a_t1") is None
    assert names.public(Key("a", "t2")) == "a_t2"


def test_a_suffix_once_given_stays_when_the_other_tab_has_gone() -> None:
    """DECISIONS 8."""
    names, _ = named(("t1", ["a"]), ("t2", ["a"]))
    names.forget("t2")
    names.remove("t1", ["a"])
    names.add("t1", ["a"])
    assert names.public(Key("a", "t1")) == "a_t1"


def test_a_name_of_a_withdrawn_tool_stays_with_its_tab() -> None:
    names, _ = named(("t1", ["a"]))
    names.remove("t1", ["a"])
    assert names.resolve("a") == Key("a", "t1")
    names.add("t2", ["a"])
    assert names.public(Key("a", "t2")) == "a_t2"
    names.add("t1", ["a"])
    assert names.public(Key("a", "t1")) == "a_t1"
    assert names.resolve("a") == Key("a", "t1")


def test_a_tab_that_comes_back_finds_the_bare_name_free() -> None:
    """B20."""
    names, _ = named(("t1", ["a"]))
    names.forget("t1")
    names.add("t1", ["a"])
    assert names.public(Key("a", "t1")) == "a"


def test_free_numbers_are_given_again() -> None:
    names, publics = named(*((f"1234{letter}", ["a"]) for letter in "abcde"))
    assert publics == ["a_1234", "a_1234_2", "a_1234_3", "a_1234_4", "a_1234_5"]
    names.forget("1234c")
    names.forget("1234b")
    names.add("1234f", ["a"])
    names.add("1234g", ["a"])
    names.add("1234h", ["a"])
    assert [names.public(Key("a", f"1234{letter}")) for letter in "fgh"] == ["a_1234_2", "a_1234_3", "a_1234_6"]


def test_tools_named_together_do_not_depend_on_their_order() -> None:
    tools = ["a.b", "a/b", "a b", "a_b", "webmcp.tool.call", "x" * 200, "x" * 201]
    expected = dict(zip(tools, named(("t", tools))[1], strict=True))
    for seed in range(20):
        shuffled = tools.copy()
        Random(seed).shuffle(shuffled)
        assert dict(zip(shuffled, named(("t", shuffled))[1], strict=True)) == expected


def test_a_page_that_invents_names_for_ever_is_forgotten_in_part() -> None:
    names = Names()
    for round_ in range(10):
        tools = [f"tool-{round_}-{number}" for number in range(500)]
        names.add("t", tools)
        names.remove("t", tools)
    assert len(names._holders) <= MAX_REMEMBERED
    assert names.resolve("tool_0_0") is None
    assert names.resolve("tool_9_499") == Key("tool-9-499", "t")
    names.forget("t")
    assert_empty(names)


def test_live_names_are_never_forgotten() -> None:
    names = Names()
    live = [f"live-{number}" for number in range(512)]
    names.add("t", live)
    for round_ in range(10):
        tools = [f"tool-{round_}-{number}" for number in range(500)]
        names.add("t", tools)
        names.remove("t", tools)
    assert [names.public(Key(tool, "t")) for tool in live] == [naming.sanitise(tool) for tool in live]


def assert_empty(names: Names) -> None:
    assert (names._holders, names._given, names._live, names._stems) == ({}, {}, {}, {})


def test_a_tab_among_a_thousand_that_share_its_names_costs_what_its_own_tools_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DECISIONS 8: no work per tab that is merely there. Looks at names are counted, not time."""
    looks = 0
    original = Names._is_free

    def counting(self: Names, text: str) -> bool:
        nonlocal looks
        looks += 1
        return original(self, text)

    monkeypatch.setattr(Names, "_is_free", counting)
    tools = [f"tool{number}" for number in range(5)]
    names = Names()
    costs = []
    for number in range(1000):
        looks = 0
        renamed = names.add(f"same{number:04}", tools)  # the same four first characters: numbers run up to 1,000
        costs.append(looks)
        assert len(renamed) == (5 if number == 1 else 0)
    # The second tab names the first one's tools anew as well; later ones look at the stem and at the next number.
    assert max(costs) <= 4 * len(tools)
    assert max(costs[2:]) <= 2 * len(tools)
    for number in range(0, 1000, 2):
        looks = 0
        names.forget(f"same{number:04}")
        assert looks == 0


TABS = ("1234a", "1234b", "t1", "é", "t" * 200)
TOOLS = (
    "a",
    "a.b",
    "a/b",
    "a_b",
    "a_t1",
    "a_1234",
    "a_1234_2",
    "a_2",
    "webmcp_tool_call",
    "x" * 128,
    "x" * 130,
    "搜",
    "索",
)
events = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "remove", "forget")), st.sampled_from(TABS), st.sets(st.sampled_from(TOOLS))
    ),
    max_size=25,
)


def replay(log: list[tuple[str, str, set[str]]], *, seed: int = 0) -> Names:
    """Apply events and hold every promise after each of them."""
    names = Names()
    live: dict[str, set[str]] = {}
    promised: dict[str, Key] = {}  # every name listed for a tab that is still connected
    suffixed: dict[Key, str] = {}
    for action, tab, tools in log:
        order = sorted(tools)
        Random(seed).shuffle(order)
        before = {key: names.public(key) for key in all_keys(live)}
        if action == "add":
            renamed = names.add(tab, order)
            live.setdefault(tab, set()).update(tools)
            changed = {key for key, name in before.items() if names.public(key) != name}
            assert {key for key in changed if key.tab != tab} == set(renamed)
            assert len(renamed) == len(set(renamed))
        elif action == "remove":
            names.remove(tab, order)
            live.get(tab, set()).difference_update(tools)
        else:
            names.forget(tab)
            live.pop(tab, None)
            promised = {name: key for name, key in promised.items() if key.tab != tab}
            suffixed = {key: name for key, name in suffixed.items() if key.tab != tab}
        listed = {key: names.public(key) for key in all_keys(live)}
        assert len(set(listed.values())) == len(listed), "a name is listed twice"
        for key, name in listed.items():
            assert VALID.fullmatch(name), name
            assert name not in MANAGEMENT_TOOLS
            assert promised.setdefault(name, key) == key, "a name was given to another tool"
            base = naming.sanitise(key.tool)[:MAX_NAME]
            if suffixed.setdefault(key, name) != name:
                assert suffixed[key] in (base, *(naming.with_suffix(base, f"_{number}") for number in range(2, 40)))
                suffixed[key] = name
        for name, key in promised.items():
            assert names.resolve(name) == key, "a name no longer reaches its tool"
    return names


def all_keys(live: dict[str, set[str]]) -> list[Key]:
    return [Key(tool, tab) for tab, tools in live.items() for tool in tools]


@given(events)
@settings(max_examples=300)
def test_names_are_valid_unique_and_keep_their_meaning(log: list[tuple[str, str, set[str]]]) -> None:
    names = replay(log)
    for tab in TABS:
        names.forget(tab)
    assert_empty(names)


@given(events, st.integers(1, 1000))
def test_names_depend_on_events_only_and_never_on_the_order_of_a_set(
    log: list[tuple[str, str, set[str]]], seed: int
) -> None:
    assert replay(log)._holders == replay(log, seed=seed)._holders


def test_a_name_that_is_reserved_is_taken_from_its_tab_and_a_name_that_is_free_again_can_be_given() -> None:
    names = Names()
    names.add("ed93", ["scripts_list", "search"])
    names.add("a1b2", ["search"])
    assert names.reserve(["scripts_list", "search", "unknown"]) == [Key("scripts_list", "ed93")]
    assert names.public(Key("scripts_list", "ed93")) == "scripts_list_ed93"
    assert names.resolve("scripts_list") is None
    assert names.resolve("search") is None, "a retired name is taken too"
    names.add("a1b2", ["unknown"])
    assert names.public(Key("unknown", "a1b2")) == "unknown_2"
    names.reserve([])
    names.add("ffff", ["scripts_list"])
    assert names.public(Key("scripts_list", "ffff")) == "scripts_list_ffff"
    for tab in ("ed93", "a1b2", "ffff"):
        names.forget(tab)
    assert_empty(names)


@pytest.mark.parametrize("name", MANAGEMENT_TOOLS)
def test_management_tools_stay_reserved(name: str) -> None:
    names = Names()
    names.reserve(["other"])
    names.add("t1", [name])
    assert names.public(Key(name, "t1")) == name + "_2"
