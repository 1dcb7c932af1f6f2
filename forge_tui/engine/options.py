"""What one run is asked to do: the options of `--run`, and their resolution against `project.toml`."""

from __future__ import annotations

import secrets
from typing import Literal

from msgspec import Struct

from forge_tui.errors import ProjectError
from forge_tui.store.project import ProjectConfig


class RunOptions(Struct, frozen=True, kw_only=True):
    """Overrides of the project's own settings; None (or empty) leaves the project's."""

    ops: tuple[str, ...] = ()
    """Patterns over operator names (`*softmax*`, `softmax`) or variant keys."""
    iterations: int | None = None
    """Candidates per operator, over all runs of the project."""
    budget_usd: float | None = None
    """Over all runs of the project. 0: no limit."""
    time_limit_s: float | None = None
    """Of this run. 0: no limit."""
    provider: str | None = None
    llm: str | None = None
    policy: str | None = None
    roles: Literal["one", "two"] | None = None
    """`two`: an analyst plans, a writer writes."""
    device: str | None = None
    """`auto`, `cuda`, `cuda:N` or `host`."""
    seed: int | None = None
    jobs: int | None = None
    """Proposals in flight at once."""
    fresh: bool = False
    """Begin anew: the old journal is kept beside the new one, the model is captured again."""
    wait: bool = False
    """Poll for `exchange` replies instead of ending with status `waiting`."""
    require_speedup: float | None = None
    """Exit 7 unless every operator worked on is at least this much faster than its baseline."""
    package: bool = True
    """Write the package at the end and run the model with it."""
    seeds: bool = True
    """Try the kernels that ship with Forge first, whatever the provider: they cost nothing and are good roots."""


class Settings(Struct, frozen=True, kw_only=True):
    """Options and project, resolved: what the loop reads."""

    ops: tuple[str, ...]
    iterations: int
    budget_usd: float
    time_limit_s: float
    provider: str
    llm: str
    policy: str
    device: str
    seed: int
    jobs: int
    tune_points: int
    wait: bool
    require_speedup: float | None
    seeds: bool
    roles: Literal["one", "two"] = "one"
    analyst_llm: str = ""
    thinking: str = ""
    prompt_tokens: int = 0
    least_us_per_usd: float = 0.0
    """See `BudgetConfig`."""


def resolve(config: ProjectConfig, options: RunOptions, last_seed: int | None = None) -> Settings:
    """The settings of this run.

    last_seed: of the run that is continued; kept where neither options nor project name one, so that a resumed search
    goes on as it would have. Raises ProjectError naming the option that cannot be.
    """
    search, budget = config.search, config.budget

    def pick(option, default):
        return default if option is None else option

    seed = pick(options.seed, pick(search.seed, last_seed))
    settings = Settings(
        ops=options.ops or search.operators,
        iterations=pick(options.iterations, search.iterations),
        budget_usd=pick(options.budget_usd, budget.usd),
        time_limit_s=pick(options.time_limit_s, budget.seconds),
        provider=options.provider or config.provider.name,
        llm=options.llm or config.provider.llm,
        policy=options.policy or search.policy,
        device=options.device or config.device.target,
        seed=secrets.randbits(32) if seed is None else seed,
        jobs=pick(options.jobs, search.jobs),
        tune_points=search.tune_points,
        wait=options.wait,
        require_speedup=options.require_speedup,
        seeds=options.seeds,
        roles=options.roles or config.provider.roles,
        analyst_llm=config.provider.analyst_llm,
        thinking=config.provider.thinking,
        prompt_tokens=config.provider.prompt_tokens,
        least_us_per_usd=budget.least_us_per_usd,
    )
    _refuse_impossible(settings)
    return settings


def _refuse_impossible(settings: Settings) -> None:
    for name, value, least in (("iterations", settings.iterations, 0), ("jobs", settings.jobs, 1),
                               ("tune_points", settings.tune_points, 1), ("budget-usd", settings.budget_usd, 0),
                               ("time-limit", settings.time_limit_s, 0)):
        if not value >= least:  # also refuses NaN
            raise ProjectError(f"{name} is {value}", where=f"--{name}", cure=f"give {least} or more")
