"""B14: limits of providers' tools at their exact boundaries, and routing by table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_relay.core import limits
from trio_relay.core.limits import Offer, Refused, Route, combine, combined_problem, route, tool_problem

A, B, C = "a" * 32, "b" * 32, "c" * 32


def names(extension_id: str, offers: list[Offer]) -> list[str]:
    return [name for name, at in route(offers).by_name.items() if at.extension_id == extension_id]


def test_the_numbers_are_the_contract_s() -> None:
    assert (limits.MAX_TOOLS, limits.MAX_NAMESPACE_CHARS, limits.MAX_NAME_CHARS, limits.MAX_COMBINED_CHARS) == (
        64,
        16,
        40,
        57,
    )
    assert sorted(limits.RESERVED) == ["browser", "devtools", "ext", "file", "network", "page", "webmcp"]


@pytest.mark.parametrize(
    ("namespace", "tool", "problem"),
    [
        ("n" * 16, "t" * 40, None),
        ("n" * 17, "t", "the namespace has 17 characters; at most 16 are allowed"),
        ("n", "t" * 41, "the name has 41 characters; at most 40 are allowed"),
        ("A-z_0", "A-z_0", None),
        ("", "t", "the namespace must be made of"),
        ("n", "", "the name must be made of"),
        ("n.m", "t", "the namespace must be made of"),
        ("n\n", "t", "the namespace must be made of"),
        ("n", "t\n", "the name must be made of"),
        ("n", "té", "the name must be made of"),
        ("n", "t٣", "the name must be made of"),  # a digit, but not an ASCII one
        *((reserved, "t", f"the namespace {reserved} is reserved") for reserved in sorted(limits.RESERVED)),
        ("browser_", "t", None),
        ("Browser", "t", None),
    ],
)
def test_parts_at_their_boundaries(namespace: str, tool: str, problem: str | None) -> None:
    found = tool_problem(namespace, tool)
    assert (found is None) if problem is None else (found is not None and found.startswith(problem))


def test_57_characters_combined_pass_and_58_do_not() -> None:
    """With legal parts there are never more than 57, so this is looked at on the function."""
    longest = combine("n" * 16, "t" * 40)
    assert len(longest) == 57
    assert combined_problem(longest) is None
    assert combined_problem(longest + "x") == f"{longest}x has 58 characters; at most 57 are allowed"


@pytest.mark.parametrize(("count", "refused"), [(63, []), (64, []), (65, ["t64"]), (66, ["t64", "t65"])])
def test_the_65th_tool_is_refused_by_name_and_the_others_stay(count: int, refused: list[str]) -> None:
    routes = route([Offer(A, "n", [f"t{number}" for number in range(count)])])
    assert routes.count(A) == len(routes.by_name) == min(count, 64)
    assert [row.tool for row in routes.refused[A]] == refused
    assert all(row.reason == "a provider may have 64 tools" for row in routes.refused[A])


def test_a_refused_tool_takes_nobody_s_place() -> None:
    tools = ["bad name", *(f"t{number}" for number in range(63)), "t0", "last"]
    routes = route([Offer(A, "n", tools)])
    assert routes.by_name["n_last"] == Route(A, "last", 65)
    assert routes.count(A) == 64
    assert [row.tool for row in routes.refused[A]] == ["bad name", "t0"]


def test_each_provider_has_64_of_its_own() -> None:
    many = [f"t{number}" for number in range(64)]
    assert len(route([Offer(A, "n", many), Offer(B, "m", many)]).by_name) == 128


def test_of_two_tools_with_one_name_the_first_wins_whichever_way_the_name_is_split() -> None:
    offers = [Offer(A, "a_b", ["c", "d"]), Offer(B, "a", ["b_c", "x"])]
    routes = route(offers)
    assert routes.by_name == {"a_b_c": Route(A, "c", 0), "a_b_d": Route(A, "d", 1), "a_x": Route(B, "x", 1)}
    assert routes.refused[B] == (Refused("b_c", f"a_b_c is a tool of the provider {A}, which comes first"),)
    assert route(offers[::-1]).by_name["a_b_c"] == Route(B, "b_c", 0)


def test_two_providers_may_share_a_namespace() -> None:
    offers = [Offer(A, "n", ["x", "y"]), Offer(B, "n", ["y", "z"])]
    assert (names(A, offers), names(B, offers)) == (["n_x", "n_y"], ["n_z"])


def test_a_provider_s_own_doubles_are_refused() -> None:
    routes = route([Offer(A, "n", ["x", "x"])])
    assert routes.by_name == {"n_x": Route(A, "x", 0)}
    assert routes.refused[A] == (Refused("x", "n_x is the name of an earlier tool of this provider"),)


def test_the_relay_s_own_tools_are_never_taken() -> None:
    routes = route([Offer(A, "webmcp_list", ["sources", "other"])], {"webmcp_list_sources"})
    assert list(routes.by_name) == ["webmcp_list_other"]
    assert routes.refused[A] == (Refused("sources", "webmcp_list_sources is a tool of the relay itself"),)


def test_with_a_reserved_namespace_all_tools_are_refused_and_other_providers_stay() -> None:
    routes = route([Offer(A, "page", ["x", "y"]), Offer(B, "n", ["x"])])
    assert list(routes.by_name) == ["n_x"]
    assert {row.reason for row in routes.refused[A]} == {"the namespace page is reserved"}
    assert routes.refused[B] == ()


def test_a_long_list_of_refusals_is_cut_and_counted() -> None:
    routes = route([Offer(A, "n", ["\ud83d\n" + "x" * 1_000_000] * 1_000)])
    rows = routes.refused[A]
    assert len(rows) == limits.MAX_REFUSED_SHOWN + 1
    assert rows[-1] == Refused("…", "and 900 more")
    assert all(row.tool.isprintable() and len(row.tool) <= limits.MAX_SHOWN_CHARS for row in rows)


NAMES = st.lists(st.text("ab_-", min_size=1, max_size=4) | st.text(max_size=45), max_size=80)
OFFERS = st.builds(
    lambda parts: [Offer(own, space, tools) for own, (space, tools) in zip((A, B, C), parts, strict=False)],
    st.lists(st.tuples(st.sampled_from(["a", "a_b", "ext", "n" * 17]), NAMES), max_size=3),
)


@given(OFFERS)
def test_every_tool_is_offered_or_refused_and_every_route_leads_to_its_own(offers: list[Offer]) -> None:
    routes = route(offers)
    for offer in offers:
        assert routes.count(offer.extension_id) + len(routes.refused[offer.extension_id]) == len(offer.tools)
        assert routes.count(offer.extension_id) <= limits.MAX_TOOLS
    owners = {offer.extension_id: offer for offer in offers}
    for public, at in routes.by_name.items():
        assert len(public) <= limits.MAX_COMBINED_CHARS
        offer = owners[at.extension_id]
        assert offer.tools[at.index] == at.tool
        assert combine(offer.namespace, at.tool) == public
        first = next(other for other in offers if public in [combine(other.namespace, tool) for tool in other.tools])
        # Whoever comes first has it, unless it had 64 others already.
        assert first is offer or routes.count(first.extension_id) == limits.MAX_TOOLS
