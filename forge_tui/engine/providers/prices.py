"""What tokens cost: a table that ships with Forge and the user's own on top. What is in neither is unknown."""

from __future__ import annotations

import tomllib
from importlib import resources

import msgspec
from msgspec import Struct

from forge_tui.errors import ProjectError
from forge_tui.store.paths import UserPaths

FILE = "prices.toml"


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens."""

    input: float
    output: float
    """Thinking included."""
    cache_write: float
    cache_read: float

    def cost(self, input: int, output: int, cache_write: int = 0, cache_read: int = 0) -> float:
        """US dollars of so many tokens; `input` without the cached ones."""
        return (input * self.input + output * self.output + cache_write * self.cache_write
                + cache_read * self.cache_read) / 1e6


def find_price(model: str) -> Price | None:
    """None when it is unknown. Raises ProjectError for a user's table that cannot be read."""
    own = UserPaths.find().config / FILE
    shipped = (resources.files("forge_tui.engine.providers") / FILE).read_text(encoding="utf-8")
    prices = _table(shipped, FILE)
    try:
        prices |= _table(own.read_text(), str(own))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"the price table cannot be read: {error}", where=str(own), cure="correct or remove it") from error
    return prices.get(model)


def _table(text: str, where: str) -> dict[str, Price]:
    try:
        return msgspec.convert(tomllib.loads(text), dict[str, Price])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ProjectError(f"no price table: {error}", where=where,
                           cure='write ["MODEL"], then input, output, cache_write and cache_read in dollars per million '
                                "tokens") from error
