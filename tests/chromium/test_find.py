"""Where a browser is looked for, on each system, in which order; and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trio_relay.chromium.find import candidates, find_chromium, how_to_get_one

WINDOWS = {
    "ProgramFiles": r"C:\Program Files",
    "PROGRAMFILES(X86)": r"C:\Program Files (x86)",
    "LOCALAPPDATA": r"C:\Users\me\AppData\Local",
}

PLACES = [
    ("linux", {"PATH": "/a:/b"}, "/a/chromium"),
    ("linux", {"PATH": "/a:/b"}, "/b/chromium"),
    ("linux", {"PATH": "/a"}, "/a/chromium-browser"),
    ("linux", {"PATH": "/a"}, "/a/google-chrome"),
    ("linux", {"PATH": "/a"}, "/a/google-chrome-stable"),
    ("linux", {"PATH": "/a"}, "/a/google-chrome-beta"),
    ("linux", {"PATH": "/a"}, "/a/google-chrome-unstable"),
    ("freebsd14", {"PATH": "/usr/local/bin/"}, "/usr/local/bin/chromium"),
    ("darwin", {}, "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    ("darwin", {"HOME": "/Users/me"}, "/Users/me/Applications/Chromium.app/Contents/MacOS/Chromium"),
    ("darwin", {}, "/Applications/Google Chrome Canary.app/Contents/MacOS/Google Chrome Canary"),
    ("win32", WINDOWS, r"C:\Program Files\Google\Chrome\Application\chrome.exe"),
    ("win32", WINDOWS, r"C:\Program Files (x86)\Google\Chrome\Application\chrome.exe"),
    ("win32", WINDOWS, r"C:\Users\me\AppData\Local\Google\Chrome SxS\Application\chrome.exe"),
    ("win32", WINDOWS, r"C:\Users\me\AppData\Local\Chromium\Application\chrome.exe"),
]


@pytest.mark.parametrize(("platform", "environ", "path"), PLACES)
def test_the_only_browser_is_found_wherever_it_is(platform: str, environ: dict[str, str], path: str) -> None:
    assert find_chromium(platform, environ, lambda candidate: candidate == path) == path


@pytest.mark.parametrize(
    ("platform", "environ"),
    [("linux", {}), ("linux", {"PATH": ""}), ("linux", {"PATH": ".:bin::"}), ("win32", {"ProgramFiles": ""})],
)
def test_no_folder_of_the_moment_is_searched(platform: str, environ: dict[str, str]) -> None:
    assert candidates(platform, environ) == []


def test_chromium_comes_before_chrome_and_an_earlier_folder_before_a_later() -> None:
    paths = candidates("linux", {"PATH": "/a:/b"})
    assert paths[:2] == ["/a/chromium", "/b/chromium"]
    assert paths.index("/b/chromium-browser") < paths.index("/a/google-chrome")
    assert len(paths) == len(set(paths)) == 12


def test_what_is_no_program_is_passed_over(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("folder", "not-executable", "good")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "chromium").mkdir()
    (folders[1] / "chromium").touch(0o644)
    (folders[2] / "chromium").touch(0o755)
    environ = {"PATH": ":".join(map(str, folders))}
    assert find_chromium("linux", environ) == str(folders[2] / "chromium")
    (folders[2] / "chromium").unlink()
    assert find_chromium("linux", environ) is None


@pytest.mark.parametrize(
    ("platform", "words"), [("linux", "google-chrome-beta"), ("darwin", "~/Applications"), ("win32", "program folders")]
)
def test_without_one_it_says_what_was_looked_for_and_how_to_get_one(platform: str, words: str) -> None:
    text = how_to_get_one(platform)
    assert words in text
    assert "Install one" in text
    assert "--browser=PROGRAM" in text
    assert "\n" not in text


@pytest.mark.parametrize("option", ["--browser", "--browser=no-such-browser"])
def test_the_demo_without_a_browser_is_one_line_and_exit_code_1(tmp_path: Path, option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trio_relay", "demo", option],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("The demo failed: ")
    assert ("'no-such-browser'" if "=" in option else "looked for chromium") in done.stderr


def test_the_demo_is_importable_on_windows_and_says_what_to_do_there() -> None:
    code = """
import sys, trio, mcp, trio_relay.links.socket
sys.modules["fcntl"] = None
sys.platform = "win32"
from trio_relay.surface.browser_demo import run_browser_demo
sys.exit(run_browser_demo())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "needs Linux or macOS" in done.stderr
    assert "'trio-relay extension'" in done.stderr
