"""Every path of a project folder and of the user's own folders, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProjectPaths:
    """The files of one project. Nothing here touches the disk; folders are made by whoever writes into them."""

    root: Path

    def __init__(self, root: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "root", Path(root).expanduser().absolute())

    @property
    def config(self) -> Path:
        """What the user decides; its presence is what makes a folder a project."""
        return self.root / "project.toml"

    @property
    def operators(self) -> Path:
        """The cards."""
        return self.root / "operators.msgpack"

    @property
    def captures(self) -> Path:
        """Tensors of captured calls, `NAME.msgpack`."""
        return self.root / "captures"

    @property
    def weights(self) -> Path:
        """Parameters that captured calls refer to, each stored once."""
        return self.captures / "weights"

    @property
    def journal(self) -> Path:
        """The append-only events of every run."""
        return self.root / "journal.msgpack"

    @property
    def kernels(self) -> Path:
        """Every candidate as plain text, `<sha256>.cu`."""
        return self.root / "kernels"

    def kernel(self, digest: str) -> Path:
        return self.kernels / f"{digest}.cu"

    @property
    def replies(self) -> Path:
        """Prompts and replies of the providers."""
        return self.root / "replies"

    @property
    def requests(self) -> Path:
        """Prompts that wait for somebody to answer (the `exchange` provider)."""
        return self.root / "exchange" / "requests"

    @property
    def answers(self) -> Path:
        """Where those answers are put."""
        return self.root / "exchange" / "replies"

    @property
    def build(self) -> Path:
        """Compiled images: a cache, safe to delete."""
        return self.root / "build"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def packages(self) -> Path:
        return self.root / "packages"

    @property
    def lock(self) -> Path:
        """Held by the one writer; names host, pid and start time."""
        return self.root / "lock"

    @property
    def stop_request(self) -> Path:
        """Its presence asks the engine to stop after a clean save."""
        return self.root / "stop"

    @property
    def pause_request(self) -> Path:
        """While it is there the engine asks for nothing new; what is in flight is still judged."""
        return self.root / "pause"

    @property
    def steering(self) -> Path:
        """A person's moves that the engine has not taken up yet, `ID.json`."""
        return self.root / "steering"

    def is_project(self) -> bool:
        try:
            return self.config.is_file()
        except OSError:  # a folder that may not be looked into, a name too long: whoever opens it says what is wrong
            return False


@dataclass(frozen=True)
class UserPaths:
    """The user's folders outside projects, by the XDG base directory specification.

    `FORGE_HOME` puts all four below one folder (tests, shared machines).
    """

    config: Path
    """Keymap, themes, prices."""
    state: Path
    """Logs of crashes, recent projects."""
    cache: Path
    """Safe to delete."""
    data: Path
    """Measured device ceilings."""

    @staticmethod
    def find() -> UserPaths:
        home = os.environ.get("FORGE_HOME")
        if home:
            base = Path(home).expanduser().absolute()
            return UserPaths(base / "config", base / "state", base / "cache", base / "data")
        return UserPaths(_xdg("XDG_CONFIG_HOME", ".config"), _xdg("XDG_STATE_HOME", ".local/state"),
                         _xdg("XDG_CACHE_HOME", ".cache"), _xdg("XDG_DATA_HOME", ".local/share"))

    @property
    def logs(self) -> Path:
        return self.state / "logs"


def _xdg(variable: str, default: str) -> Path:
    """A relative value is to be ignored, says the specification."""
    value = os.environ.get(variable, "")
    base = Path(value) if os.path.isabs(value) else Path.home() / default
    return base / "forge-tui"
