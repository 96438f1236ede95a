"""Checks of trio-relay: `nox` runs what every change must pass, `nox -l` lists the sessions."""

from __future__ import annotations

import shutil

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = False


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """The fast suite, under 3 minutes. Arguments go to pytest."""
    session.install("-e", ".[dev]")
    session.run("pytest", "-m", "not slow and not npm and not chromium", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over the package and its tests."""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    session.install("ruff>=0.12")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """The fast suite with the oldest versions pyproject.toml allows."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    floors = [
        requirement.split(",")[0].replace(">=", "==") for requirement in project["dependencies"] if ">=" in requirement
    ]
    session.install("-e", ".[dev]", *floors)
    session.run("pytest", "-m", "not slow and not npm and not chromium", *session.posargs)


@nox.session
def screenshots(session: nox.Session) -> None:
    """The README's pictures of the extension's popup, anew. Needs a Chromium (`-- --browser PROGRAM`)."""
    session.install("-e", ".")
    session.run("python", "docs/make_screenshots.py", *session.posargs)


@nox.session
def e2e(session: nox.Session) -> None:
    """Everything, with the npm programs and the long waits."""
    if shutil.which("npm") is None:
        session.error("the e2e session needs npm (Debian: apt-get install npm)")
    session.install("-e", ".[dev]")
    with session.chdir("tests/e2e"):
        session.run("npm", "install", "--no-audit", "--no-fund", external=True)
    session.run("pytest", *session.posargs, env={"TRIO_RELAY_NPM": "required"})
