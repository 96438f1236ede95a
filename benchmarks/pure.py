"""The pure parts alone, in this process: codec, naming, registry. Operations per second, medians of rounds."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

from msgspec import Raw

from benchmarks.driver import Call, Reply
from benchmarks.payloads import KINDS, Payloads, readable
from benchmarks.results import MeasuredMetric, MeasuredScenario, Results
from benchmarks.run import Step
from benchmarks.scenarios.tabs import TOOLS, page, tab_id
from benchmarks.subjects import OURS
from trio_relay.core.naming import Names
from trio_relay.core.registry import Registry, Source
from trio_relay.core.results import parse_result
from trio_relay.core.tooldef import ToolDef, parse_tool
from trio_relay.wire import browser, codec, mcp

SLICE_S = 0.1
QUICK_SLICE_S = 0.002
"""How long one measurement repeats its operation, in seconds."""

BIG = (1_000_000, 9_900_000)
TABS = 1_000

Operations = dict[str, Callable[[], object]]
"""By label, something that can be done again and again."""


def suite(seed: int) -> dict[str, Callable[[], Operations]]:
    """By title, what makes the operations of a family."""
    payloads = Payloads(seed)
    return {
        "Codec: a result frame, from its bytes to checked bytes": lambda: _results(payloads),
        "Codec: a request line, taken apart": lambda: _lines(payloads),
        "Codec: single steps, nested JSON of 9.9 MB": lambda: _steps(payloads),
        "Naming": _naming,
        f"Registry: {TABS:,} tabs × {TOOLS} tools, all of the same names": _registry,
    }


def run(results: Results, step: Step) -> None:
    """Measure everything, family by family; within one, every operation has its turn in each round."""
    slice_s = QUICK_SLICE_S if results.quick else SLICE_S
    for title, make in suite(results.seed).items():
        measured = MeasuredScenario(title.partition(":")[0].lower(), title)
        results.scenarios.append(measured)
        operations = make()
        for label in operations:
            key = f"pure/{title}/{label}"
            measured.metrics.append(MeasuredMetric(key, label, "1/s", True, {OURS: []}))
        for _ in range(results.rounds):
            for metric in measured.metrics:
                metric.values[OURS].append(round(rate(operations[metric.label], slice_s), 2))
        step(title, 1)


def rate(operation: Callable[[], object], seconds: float) -> float:
    """Operations per second, after one that is not counted."""
    operation()
    done = 0
    start = time.perf_counter()
    while True:
        operation()
        done += 1
        took = time.perf_counter() - start
        if took >= seconds:
            return done / took


def _results(payloads: Payloads) -> Operations:
    def taken(frame: bytes) -> Callable[[], object]:
        def operation() -> object:
            decoded = browser.decode_frame(codec.clean_text(frame))
            assert isinstance(decoded, browser.Result | browser.PlainAnswer)
            return parse_result(decoded.result)

        return operation

    operations: Operations = {}
    for size in (100, *BIG):
        for kind in KINDS:
            if not kind.endswith("+schema"):
                head, body = Reply(payloads.result(kind, size)).frame(b"77727672-1")
                frame = head[head.index(b"{") :] + body
                operations[f"{kind}, {readable(size)}"] = taken(frame)
    return operations


def _lines(payloads: Payloads) -> Operations:
    operations: Operations = {}
    for size in (100, *BIG):
        line = b'{"jsonrpc":"2.0","id":7' + Call("small", payloads.arguments("text", size)).tail[:-1]
        operations[f"text, {readable(size)}"] = lambda line=line: mcp.PLAIN_CALL.decode(line)  # type: ignore[misc]
    return operations


def _steps(payloads: Payloads) -> Operations:
    nested = payloads.result("nested", BIG[-1])
    other = payloads.result("non-ASCII", BIG[-1])
    return {
        "valid UTF-8? (non-ASCII text)": lambda: codec.require_utf8(other),
        "made one line (non-ASCII text)": lambda: codec.one_line(other),
        "made one line": lambda: codec.one_line(nested),
        "nested too deeply?": lambda: codec.nested_deeper_than(nested, 200),
        "an integer that is too long?": lambda: codec.has_overlong_integer(nested),
        "a number that is too large?": lambda: codec.has_infinite_number(nested),
        "invoke frame spliced": lambda: browser.invoke("77727672-1", "small", Raw(nested), 65_000),
        "response line spliced": lambda: mcp.result_line(b"7", nested),
    }


def _tools() -> list[ToolDef]:
    definitions: list[object] = json.loads(page().tools)
    return [parse_tool(json.dumps(definition).encode()) for definition in definitions]


def _naming() -> Operations:
    tools = [tool.name for tool in _tools()]
    names = Names()
    for number in range(TABS):
        names.add(tab_id(number), tools)
    last = tab_id(TABS - 1)
    public = f"{tools[7]}_{last}"

    def come_and_go() -> None:
        names.add("ffff", tools)
        names.forget("ffff")

    return {
        f"a tab with {TOOLS} shared names comes and goes, among {TABS:,}": come_and_go,
        f"a name resolved, among {TABS * TOOLS:,}": lambda: names.resolve(public),
    }


def _registry() -> Operations:
    definition = json.dumps(json.loads(page().tools)[0]).encode()
    tools = _tools()
    clock = itertools.count(1)

    def join(registry: Registry, number: int) -> None:
        now = next(clock)
        registry.join(Source(f"s{number}", tab_id(number), now, now, title="A tab"), now)
        registry.publish(f"s{number}", tools, now)

    def filled() -> Registry:
        registry = Registry()
        for number in range(TABS):
            join(registry, number)
        return registry

    registry = filled()
    public = f"{tools[7].name}_{tab_id(TABS - 1)}"

    def come_and_go(*, listed: bool) -> None:
        join(registry, TABS)
        if listed:
            registry.listing()
        registry.remove(f"s{TABS}")

    return {
        "a definition parsed": lambda: parse_tool(definition),
        "all tabs join": filled,
        "a tab comes and goes": lambda: come_and_go(listed=False),
        "a tab comes, the list is made, it goes": lambda: come_and_go(listed=True),
        "the list again, nothing changed": registry.listing,
        "a call resolved": lambda: registry.resolve(public),
    }
