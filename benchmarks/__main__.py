"""`python -m benchmarks`: relays side by side; `… pure`: the pure parts; `… docs`: stored results into the docs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import docs, machine, pure, run, subjects
from benchmarks.payloads import Payloads
from benchmarks.pump import Pump
from benchmarks.report import markdown
from benchmarks.results import Results
from benchmarks.scenarios import ALL
from benchmarks.scenarios.base import FULL, QUICK, Scenario

OUT = Path(__file__).parent / "results"
ROUNDS, QUICK_ROUNDS = 9, 1
SUITES = ("relay", "pure", "docs")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=SUITES, default="relay")
    parser.add_argument("--quick", action="store_true", help="one round of little, to see that everything works")
    parser.add_argument("--only", nargs="+", default=[], metavar="SCENARIO", help="; ".join(k.name for k in ALL))
    parser.add_argument("--peer", action="append", default=[], metavar="'CMD {port}'", help="another relay to measure")
    parser.add_argument("--rounds", type=int, help=f"rounds of each measurement (default: {ROUNDS})")
    parser.add_argument("--seed", type=int, default=1, help="of the data")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where the results are written")
    parser.add_argument("--no-npm", action="store_true", help="without the npm relay")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.suite == "docs":
        return _docs(options.out)
    try:
        import matplotlib  # noqa: F401  (found out now, not after an hour)

        from benchmarks import screen
    except ImportError as error:
        parser.error(f"{error}: pip install -e '.[bench]'")
    results = Results(
        suite=options.suite,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        quick=options.quick,
        rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        seed=options.seed,
        machine=machine.describe(),
        subjects={},
    )
    stem = options.out / (f"{options.suite}-quick" if options.quick else options.suite)
    try:
        measured = _subjects(options.peer, not options.no_npm) if options.suite == "relay" else []
        kinds = list(run.scenarios_named(options.only, ALL if options.suite == "relay" else ()))
    except ValueError as error:
        parser.error(str(error))
    if options.suite == "pure":
        results.subjects = {subjects.OURS: "in this process"}
        with screen.progress(len(pure.suite(results.seed))) as step:
            pure.run(results, step)
    else:
        results.subjects = {subject.name: subject.shown for subject in measured}
        machine.allow_many_files()
        _relay(results, kinds, measured, stem.with_suffix(".json"))
    _finish(results, stem)
    return 0


def _subjects(peers: Sequence[str], with_npm: bool) -> list[subjects.Subject]:
    found = [subjects.ours()]
    if with_npm:
        peer = subjects.npm()
        if isinstance(peer, str):
            print(f"without the npm relay: {peer}", file=sys.stderr)
        else:
            found.append(peer)
    for command in peers:
        found.append(subjects.other(command, [subject.name for subject in found]))
    return [*found, *subjects.floors()]


def _relay(results: Results, kinds: list[type[Scenario]], measured: list[subjects.Subject], path: Path) -> None:
    from benchmarks import screen

    scale = QUICK if results.quick else FULL
    payloads = Payloads(results.seed)
    with closing(Pump()) as pump:
        total = sum(run.plan(kind(payloads, scale, pump), measured, results.rounds) for kind in kinds)
    with screen.progress(total) as step:
        for kind in kinds:
            results.scenarios.append(run.run(kind, measured, results.rounds, payloads, scale, step))
            results.write(path)  # a run that is stopped keeps what it has


def _finish(results: Results, stem: Path) -> None:
    from benchmarks import plot, screen

    screen.show(results)
    written = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    results.write(written[0])
    written[1].write_text(markdown(results))
    written += plot.draw(results, stem)
    print("written:", *(path.name for path in written), f"in {stem.parent}")


def _docs(out: Path) -> int:
    status = 0
    for suite in ("relay", "pure"):
        path = out / f"{suite}.json"
        try:
            written = docs.refresh(Results.read(path))
        except (OSError, ValueError) as error:
            print(f"{suite}: {error}", file=sys.stderr)
            status = 1
        else:
            print(f"{suite}: written", *(each.name for each in written))
    return status


if __name__ == "__main__":
    sys.exit(main())
