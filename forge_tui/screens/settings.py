"""What the user decides about the app (`config.toml`), and what the app remembers by itself (`app.json`)."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable

import msgspec

from forge_tui.errors import MissingEnvironment
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import UserPaths


class AppConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[app]`."""

    theme: str = ""
    """Empty: the one chosen last, else forge-dark."""
    mouse: bool = False
    """Clicks and wheel; motion is never reported."""
    ascii: bool | None = None
    """Signs as ASCII letters. None: where the terminal or its locale has no Unicode."""


class UserConfig(msgspec.Struct, frozen=True):
    """`config.toml` in the user's config folder. Other tables belong to other parts of Forge."""

    app: AppConfig = AppConfig()
    keys: dict[str, str] = {}
    """Binding id -> keys, comma-separated: `"operators.forge" = "f,ctrl+r"`."""


class Remembered(msgspec.Struct, frozen=True):
    """What the app was left with."""

    theme: str = ""
    panes: dict[str, int] = {}
    """Sizes of each screen's panes, cells: `operators`, `kernels:narrow`, `operators:lower`."""
    zoomed: dict[str, str] = {}
    """The pane that has the whole screen, by screen."""
    archived: tuple[str, ...] = ()
    """Projects out of sight."""


def load_config(known_ids: Callable[[], Iterable[str]]) -> tuple[UserConfig, list[str]]:
    """The user's decisions, and a sentence for each thing in the file that cannot be used.

    known_ids: asked for only where there are keys, since that loads every screen.
    """
    path = UserPaths.find().config / "config.toml"
    try:
        config = msgspec.convert(tomllib.loads(path.read_text()), UserConfig)
    except FileNotFoundError:
        return UserConfig(), []
    except (
        OSError,
        ValueError,
        msgspec.ValidationError,
    ) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        return UserConfig(), [f"{path}: {error}; nothing of it is used until that is corrected"]
    if not config.keys:
        return config, []
    known, problems, keys = sorted(known_ids()), [], {}
    for name, value in config.keys.items():
        if name in known:
            keys[name] = value
        else:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {close[0]}?" if close else "docs/screens.md lists the names"
            problems.append(f"{path}: [keys] has `{name}`, which is no action; {hint}")
    return UserConfig(config.app, keys), problems


def load_remembered() -> Remembered:
    """A damaged file is a new one: it holds nothing that anybody made."""
    try:
        return msgspec.json.decode((UserPaths.find().state / "app.json").read_bytes(), type=Remembered)
    except (OSError, msgspec.DecodeError):
        return Remembered()


def remember_app(remembered: Remembered) -> None:
    """A state folder that cannot be written is no reason to stop anybody."""
    try:
        write_atomic(UserPaths.find().state / "app.json", msgspec.json.encode(remembered))
    except MissingEnvironment:
        pass
