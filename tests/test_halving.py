"""Successive halving of settings: the best is found under noise, most effort goes to the best, the budget ends it."""

from __future__ import annotations

import random

import pytest
import torch

from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.judge.halving import OVER, Budget, halve, ranking
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.selftest import variant_of
from forge_tui.engine.judge.tuning import Setting
from forge_tui.engine.judge.verdict import Timing
from forge_tui.engine.prompts import parse_reply


def settings(count: int) -> list[Setting]:
    return [Setting({"BLOCK": number}, None, us=None) for number in range(count)]  # type: ignore[arg-type]


def noisy_best(count: int, seed: int) -> tuple[int, int]:
    """True times 100, 101, ... us, noise of 3 % at effort 1; the winner's number, with halving and without."""
    rng, found = random.Random(seed), settings(count)
    efforts: dict[int, int] = {}

    def measure(setting: Setting, effort: int) -> None:
        setting.us = (100 + setting.values["BLOCK"]) * (1 + rng.gauss(0, 0.03 / effort**0.5))
        efforts[id(setting)] = effort

    for setting in found:
        measure(setting, 1)
    without = min(found, key=lambda setting: setting.us).values["BLOCK"]
    halve(found, measure, Budget(0.0))
    return ranking(found, efforts)[0].values["BLOCK"], without


def test_the_winner_is_better_than_that_of_one_brief_look() -> None:
    """Mean place over 200 draws: 16 settings that differ by 1 % each, under 3 % of noise."""
    places = [noisy_best(16, seed) for seed in range(200)]
    with_halving, without = (sum(column) / len(places) for column in zip(*places, strict=True))
    assert with_halving < 0.75 * without


def test_rounds_halve_and_effort_doubles() -> None:
    found, asked = settings(16), []
    for setting in found:
        setting.us = float(setting.values["BLOCK"])
    assert halve(found, lambda setting, effort: asked.append((effort, setting.values["BLOCK"])), Budget(0.0)) == 3
    assert [sum(effort == wanted for effort, _ in asked) for wanted in (2, 4, 8)] == [8, 4, 2]
    assert {place for _, place in asked} == set(range(8)), "the slower half is left behind"
    assert halve(found[:2], lambda setting, effort: asked.append((0, 0)), Budget(0.0)) == 0


def test_the_budget_ends_it_and_building_costs_none() -> None:
    now = [0.0]
    budget = Budget(2.0, lambda: now[0])
    budget.pause()
    now[0] = 100.0
    budget.resume()
    assert not budget.over
    found, asked = settings(16), []
    for setting in found:
        setting.us = 1.0

    def again(setting: Setting, effort: int) -> None:
        asked.append(effort)
        now[0] += 0.5

    halve(found, again, budget)
    assert len(asked) == 4 and budget.over


class NoisyTimer:
    """Times that differ each time; smaller blocks are faster."""

    noisy = True

    def __init__(self) -> None:
        self.looks: list[tuple[int, int]] = []

    def quick(self, setting, trial, effort=1):
        self.looks.append((setting.values["BLOCK"], effort))
        return setting.values["BLOCK"] + random.Random(len(self.looks)).random(), None

    def full(self, setting, trial, samples):
        return Timing("modelled", self.quick(setting, trial)[0])


@pytest.fixture
def judged(monkeypatch):
    """The prompt's worked example with eight block sizes through the real judge, with a noisy timer."""
    from test_providers import make_ask

    from forge_tui.engine.prompts import build_prompt

    source = parse_reply(build_prompt(make_ask()).system).source.replace(
        "BLOCK = [128, 256, 512]", "BLOCK = [512, 256, 128, 64, 32, 96, 160, 192]"
    )
    values = torch.randn(6, 300, generator=torch.Generator().manual_seed(5))
    variant, sample = variant_of("torch.nn.functional.softmax", {"input": values, "dim": -1, "dtype": None})

    def judge(**options):
        timer = NoisyTimer()
        return judge_text(
            source, "example.cu", variant, [sample], HostTarget(), options=JudgeOptions(**options), timer=timer
        ), timer

    return judge


def test_the_judge_times_the_better_settings_again(judged) -> None:
    verdict, timer = judged()
    assert verdict.verified and verdict.settings == {"BLOCK": 32} and len(verdict.points) == 8
    assert [sum(effort == wanted for _, effort in timer.looks[:-1]) for wanted in (1, 2, 4)] == [8, 4, 2]
    assert {block for block, effort in timer.looks if effort == 2} == {32, 64, 96, 128}


def test_settings_beyond_the_budget_say_so(judged) -> None:
    verdict, _ = judged(tune_seconds=1e-9)
    assert verdict.verified and verdict.settings == {"BLOCK": 512}, "the first setting is always tried"
    assert [point.reason for point in verdict.points[1:]] == [OVER] * 7
