"""`trio-relay extension`: where the browser extension is, what its id is, how to load it, and a copy of it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import shutil
from pathlib import Path

from trio_relay.errors import ConfigError, RelayError

FOLDER = Path(__file__).with_name("browser")
"""The unpacked extension, as Chrome loads it. Package data."""

WEBMCP_FLAG = "chrome://flags/#enable-webmcp-testing"
NOT_COPIED = ("__pycache__",)
"""Chrome warns of names that begin with an underscore; those with a dot are some program's own."""


def extension_id(folder: Path = FOLDER) -> str:
    """The 32 letters by which browsers know the extension: they follow from the `key` of its manifest.

    Raises:
        RelayError: there is no manifest with a key, so this installation is incomplete.
    """
    try:
        key = base64.b64decode(json.loads((folder / "manifest.json").read_text("utf-8"))["key"], validate=True)
    except (OSError, ValueError, LookupError, TypeError, binascii.Error) as error:
        raise RelayError(f"there is no usable extension in {folder} ({error}): install trio-relay again") from None
    digits = hashlib.sha256(key).hexdigest()[:32]
    return digits.translate(str.maketrans("0123456789abcdef", "abcdefghijklmnop"))


def export(target: Path, folder: Path = FOLDER) -> None:
    """Copy the extension into `target`, which is created; the files get the time and the rights of new ones.

    Raises:
        ConfigError: `target` is there and not an empty folder, or it cannot be written.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise ConfigError(f"--export takes a new or an empty folder; {target} is not empty")
        _copy(folder, target)
    except FileExistsError:
        raise ConfigError(f"--export takes a new or an empty folder; {target} is a file") from None
    except OSError as error:
        raise ConfigError(f"--export takes a folder that can be written, not {target} ({error.strerror})") from None


def _copy(folder: Path, target: Path) -> None:
    for item in sorted(folder.iterdir()):
        if item.name.startswith(".") or item.name in NOT_COPIED:
            continue
        copy = target / item.name
        if item.is_dir():
            copy.mkdir()
            _copy(item, copy)
        else:
            shutil.copyfile(item, copy)


def how_to_load(folder: Path) -> str:
    """What a person does to load the extension from `folder`, and what to know then. Lines, the last one ended."""
    return f"""\
The browser extension is in this folder:

  {folder}

Load it into Chrome or Chromium:

  1. Open chrome://extensions
  2. Turn on "Developer mode", at the top right
  3. Press "Load unpacked" and choose the folder

Pages need WebMCP too. The browser's own: turn on
  {WEBMCP_FLAG}

To let this extension in and no other, give your relay the option
  --widget-origin chrome-extension://{extension_id(folder)}
"""


def run_extension(target: str | None, *, only_id: bool) -> None:
    """Print how to load the extension, from a copy of it in `target` if given; or only its id.

    Raises:
        ConfigError: `target` cannot be used.
        RelayError: this installation is incomplete.
    """
    if only_id:
        print(extension_id())
        return
    folder = FOLDER
    extension_id()  # before anything is written
    if target is not None:
        if not target:
            raise ConfigError("--export takes a folder")
        folder = Path(target).expanduser().absolute()
        export(folder)
    print(how_to_load(folder), end="")
