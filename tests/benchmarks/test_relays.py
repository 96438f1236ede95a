"""The floors and our relay as processes, spoken to by the driver of the benchmarks: both do what is to be measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks import subjects
from benchmarks.driver import Call, Fault, Reply
from benchmarks.payloads import KINDS, MASK_KEY, SMALL, SMALL_CALL, Page, Payloads
from benchmarks.pump import Pump
from benchmarks.scenarios.base import QUICK, show_page, wait_until_listed
from benchmarks.scenarios.calls import InFlight
from benchmarks.subjects import FLOORS, Subject, started, wait_for_port

EVERYONE = [*subjects.floors(), subjects.ours()]
SIZE = 3_000_000
"""More than one block and more than any pipe or socket buffer holds."""


@pytest.fixture
def pump() -> Iterator[Pump]:
    with closing(Pump()) as pump:
        yield pump


def name_of(subject: Subject) -> str:
    return subject.name


@pytest.mark.parametrize("subject", EVERYONE, ids=name_of)
def test_calls_of_every_kind_arrive_as_they_were_sent(pump: Pump, subject: Subject) -> None:
    payloads = Payloads(3)
    page = Page()
    page.add(SMALL_CALL.tool, SMALL)
    calls = []
    for number, kind in enumerate(KINDS):
        reply = Reply(payloads.result(kind, SIZE if kind == "text" else 20_000))
        call = Call(f"big_{number}", payloads.arguments(kind, SIZE if kind == "text" else 20_000))
        calls.append((call, reply))
        page.add(call.tool, reply, with_output=kind.endswith("+schema"))
    with started(subject, pump) as running:
        show_page(running, page)
        (tab,) = running.driver.tabs.values()
        for call, reply in [*calls, (SMALL_CALL, SMALL), *reversed(calls)]:
            running.driver.check(call, reply, tab)
            assert running.driver.call(call, len(reply.result)) > 0


@pytest.mark.parametrize("subject", EVERYONE, ids=name_of)
def test_many_calls_of_many_tabs_at_once_all_come_back(pump: Pump, subject: Subject) -> None:
    scenario = InFlight(Payloads(3), QUICK, pump)
    (cell,) = scenario.cells()
    with scenario.open(subject) as session:
        scenario.warm_up(session, cell)
        values = scenario.measure(session, cell)
    assert values["in-flight/rate"] > 0


def test_our_relay_reads_a_masked_result(pump: Pump) -> None:
    page = Page()
    reply = Reply(Payloads(3).result("non-ASCII", 200_000), MASK_KEY)
    page.add("it", reply)
    with started(subjects.ours(), pump) as running:
        show_page(running, page)
        (tab,) = running.driver.tabs.values()
        running.driver.check(Call("it"), reply, tab)


def test_a_second_relay_joins_the_first(pump: Pump) -> None:
    page = Page()
    page.add(SMALL_CALL.tool, SMALL)
    with started(subjects.ours(), pump) as server:
        show_page(server, page)
        with started(subjects.ours(), pump, server.driver.port) as client:
            client.driver.initialize()
            wait_until_listed(client, page.names)
            (tab,) = server.driver.tabs.values()
            client.driver.check(SMALL_CALL, SMALL, tab)


def test_wrong_data_is_noticed(pump: Pump) -> None:
    page = Page()
    page.add("it", SMALL)
    with started(subjects.floors()[0], pump) as running:
        show_page(running, page)
        (tab,) = running.driver.tabs.values()
        with pytest.raises(Fault, match="something else than the page"):
            running.driver.check(Call("it"), Reply(b'{"content":[{"type":"text","text":"no"}]}'), tab)
        with pytest.raises(Fault, match="failed"):
            running.driver.call(Call("it"), at_least=1_000_000)


def test_a_relay_that_dies_is_a_fault(pump: Pump) -> None:
    page = Page()
    page.add("it", SMALL)
    with started(subjects.ours(), pump) as running:
        show_page(running, page)
        running.process.kill()
        with pytest.raises(Fault, match=r"ended|closed|lost|written"):
            running.driver.call(Call("it"))


def test_a_command_that_is_no_relay_is_a_fault_with_its_last_words(pump: Pump) -> None:
    broken = subjects.other("python3 -c 'raise SystemExit(\"no relay on {port}\")'", [])
    with pytest.raises(Fault, match="no relay on"), started(broken, pump) as running:
        wait_for_port(running)


def test_floors_are_told_from_relays() -> None:
    assert [subject.is_floor for subject in EVERYONE] == [True, True, False]
    assert tuple(subject.name for subject in subjects.floors()) == FLOORS
    with pytest.raises(ValueError, match="port"):
        subjects.other("relay --port 9333", [])
    assert subjects.other("x/relay {port}", ["relay"]).name == "relay-2"
