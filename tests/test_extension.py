"""`trio-relay extension`: id, copy, what is printed, exit codes; and that a wheel and an sdist hold the data."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from trio_relay import extension
from trio_relay.chromium.serve import SAMPLE
from trio_relay.cli import main
from trio_relay.errors import ConfigError, RelayError
from trio_relay.extension import FOLDER, export, extension_id, how_to_load

STEPS = ("1. Open chrome://extensions", "Developer mode", "Load unpacked", "chrome://flags/#enable-webmcp-testing")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["extension", *argv])
    out, err = capsys.readouterr()
    return left.value.code or 0, out, err


# -- the id


def test_the_id_follows_from_the_key_as_browsers_compute_it() -> None:
    """Computed a second way: each half byte is one of the letters a to p."""
    key = base64.b64decode(json.loads((FOLDER / "manifest.json").read_text())["key"])
    letters = [chr(ord("a") + half) for byte in hashlib.sha256(key).digest()[:16] for half in (byte >> 4, byte & 15)]
    assert extension_id() == "".join(letters)


def test_the_id_of_this_extension_stays(tmp_path: Path) -> None:
    """Chromium gave it this one. People have it in their `--widget-origin`: a new key would lock them out."""
    assert extension_id() == "dfmjanjmbbmleoinmjfjkbplomkiniel"
    (tmp_path / "manifest.json").write_text(json.dumps({"key": ""}))
    assert extension_id(tmp_path) == "odlameecjipmbmbejkplpemijjgpljce", "of no bytes at all: SHA-256 e3b0c442…"


@pytest.mark.parametrize("manifest", [None, "", "{}", "[]", '{"key": 1}', '{"key": "?"}', "\xff"])
def test_a_manifest_without_a_usable_key_is_one_clear_error(tmp_path: Path, manifest: str | None) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_bytes(manifest.encode("latin-1"))
    with pytest.raises(RelayError, match="install trio-relay again") as error:
        extension_id(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_the_readme_names_this_id() -> None:
    assert f"--widget-origin chrome-extension://{extension_id()}\n" in (FOLDER.parents[1] / "README.md").read_text(
        "utf-8"
    )


# -- what is printed


def test_it_prints_the_folder_the_steps_and_the_origin(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    for words in (str(FOLDER), *STEPS, f"--widget-origin chrome-extension://{extension_id()}"):
        assert words in out
    assert out.isascii(), "a terminal may know nothing else"
    assert len(out.splitlines()) <= 23


def test_the_id_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--id") == (0, f"{extension_id()}\n", "")


def test_its_help_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: trio-relay extension [--export DIR | --id]\n")
    assert "--invoke-timeout" not in out


def test_an_incomplete_installation_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(folder: Path = tmp_path) -> str:
        return extension_id(folder)

    monkeypatch.setattr(extension, "extension_id", broken)
    code, out, err = run(capsys, "--export", str(tmp_path / "copy"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--nope"], "--nope"),
        (["more"], "more"),
        (["--export"], "--export"),
        (["--export="], "--export"),
        (["--id", "--export", "x"], "not allowed with"),
        (["--port", "9444"], "--port"),
        (["--ex", "x"], "--ex"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize("command", ["demo", "extension"])
def test_a_command_behind_options_is_told_to_come_first(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--port", "9444", command])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"trio-relay: {command!r} comes first")


# -- the copy


def test_the_copy_is_the_whole_extension_and_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    code, out, err = run(capsys, "--export", str(target))
    assert (code, err) == (0, "")
    assert out == how_to_load(target)
    for words in STEPS:
        assert words in out
    copied = files_of(target)
    assert {"manifest.json", "worker.js", "page/agent.js", "icons/128.png"} <= copied.keys()
    assert copied == files_of(FOLDER)


def test_droppings_are_not_copied_and_rights_are_those_of_new_files(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("page/agent.js", "page/__pycache__/x.pyc", ".DS_Store", "page/.swp", "manifest.json"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
        (source / name).chmod(0o400)
    target.mkdir()  # empty: as good as a new one
    export(target, source)
    assert files_of(target) == {"page/agent.js": b"page/agent.js", "manifest.json": b"manifest.json"}
    assert os.access(target / "manifest.json", os.W_OK)
    assert (target / "manifest.json").stat().st_mode & 0o200


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        export(tmp_path)
    assert files_of(tmp_path) == {"mine.txt": b"mine"}


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file is a file"):
        export(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"can be written, not .*below"):
        export(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match=r"can be written, not .*\(File name too long\)"):
        export(tmp_path / ("x" * 300))


def test_nobody_reading_the_output_leaves_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trio_relay", "extension"],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


# -- the data is in what people install


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_people_install_has_the_extension_and_the_sample_page(tmp_path: Path, kind: str) -> None:
    root = FOLDER.parents[1]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path)],
        cwd=root,
        capture_output=True,
        timeout=60,
        check=True,
    )
    (built,) = tmp_path.iterdir()
    if kind == "wheel":
        with zipfile.ZipFile(built) as archive:
            names = set(archive.namelist())
    else:
        with tarfile.open(built) as tar:
            names = {name.partition("/")[2] for name in tar.getnames()}
    wanted = {path.relative_to(root).as_posix() for path in (SAMPLE, *FOLDER.rglob("*")) if path.is_file()}
    assert len(wanted) > 10
    assert wanted - names == set()
    assert {name for name in names if "__pycache__" in name or "node_modules" in name} == set()
