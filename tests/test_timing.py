"""The statistics of timing on synthetic samples, the plans of a measurement, and what disturbs one. No device."""

from __future__ import annotations

import os

import numpy as np
import pytest

from forge_tui.cuda import ceilings
from forge_tui.cuda.ceilings import Ceilings, copy_program, data_folder, empty_program
from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import H200
from forge_tui.cuda.nvml import POWER_CAP, DeviceState, Nvml, disturbances
from forge_tui.cuda.statistics import RESOLUTION_US, SYSTEMATIC, Estimate, Stop, bootstrap, compare, estimate, is_gain, ratios
from forge_tui.cuda.timing import BATCH_S, FULL, QUICK, Comparison, Contender, Stopwatch, _batch
from forge_tui.store.paths import UserPaths


def rounds(us: float, count: int, random: np.random.Generator, drift: np.ndarray, noise: float = 0.01) -> list[float]:
    """Times of one contender: noise, drift shared with its pair, and now and then an interruption of 30 %."""
    values = us * drift * (1 + random.normal(0, noise, count)) * np.where(random.random(count) < 0.05, 1.3, 1.0)
    return list(values)


@pytest.mark.parametrize("us", [4.0, 20.0, 100.0, 3000.0])
def test_a_kernel_against_itself_is_no_gain(us: float):
    """100 comparisons over drifting clocks: at least 95 say no gain. (Chance alone would be right in 99.5 %.)"""
    random = np.random.default_rng(7)
    gains = 0
    for trial in range(100):
        count = int(random.integers(20, 80))
        drift = np.linspace(1, 1 + random.normal(0, 0.1), count)
        gains += is_gain(compare(rounds(us, count, random, drift), rounds(us, count, random, drift), trial))
    assert gains <= 5


def test_buffers_that_lie_badly_are_no_gain():
    """A difference that repeats, as large as placement makes it, is inside the interval however many rounds are made."""
    random = np.random.default_rng(8)
    drift = np.ones(2000)
    found = compare(rounds(100.0, 2000, random, drift), rounds(100.0 * (1 + 0.5 * SYSTEMATIC), 2000, random, drift))
    assert not is_gain(found) and found.high > 1


@pytest.mark.parametrize("gain", [1.05, 1.5, 20.0])
def test_a_faster_kernel_is_found(gain: float):
    random = np.random.default_rng(9)
    drift = np.linspace(1, 1.1, 40)
    found = compare(rounds(50.0, 40, random, drift), rounds(50.0 * gain, 40, random, drift))
    assert is_gain(found) and found.low < gain < found.high and found.value == pytest.approx(gain, rel=0.02)
    back = compare(rounds(50.0 * gain, 40, random, drift), rounds(50.0, 40, random, drift))
    assert back.high < 1


def test_drift_that_pairs_share_cancels():
    drift = np.linspace(1, 3, 30)
    candidate, baseline = list(100 * drift), list(150 * drift)
    assert ratios(candidate, baseline) == pytest.approx([1.5] * 30)
    assert compare(candidate, baseline).width < 3 * SYSTEMATIC
    assert estimate(candidate).width > 0.1


def test_the_clocks_step_widens_the_intervals_of_short_calls():
    same = [RESOLUTION_US * 10] * 30
    found = compare(same, same)
    assert found.value == 1.0 and found.low == pytest.approx(0.9 * (1 - SYSTEMATIC)) and found.high == pytest.approx(1.1 * (1 + SYSTEMATIC))
    assert compare([0.0] * 5, [1.0] * 5).value == pytest.approx(1 / RESOLUTION_US)      # never a division by zero


def test_intervals_cover_the_median():
    random = np.random.default_rng(10)
    covered = 0
    for trial in range(200):
        low, high = bootstrap(random.lognormal(0, 0.3, 41), trial)
        covered += low <= 1.0 <= high
    assert covered >= 190                                    # nominally 198; the percentile bootstrap of a median falls a little short
    assert bootstrap(np.array([3.0]), 0) == (3.0, 3.0)
    assert bootstrap(np.arange(50.0), 3) == bootstrap(np.arange(50.0), 3)
    with pytest.raises(ValueError, match="no samples"):
        estimate([])


def test_when_to_stop():
    stop = Stop(least=10, most=100, spread=0.02, seconds=1.0, patience_s=5.0)
    assert not stop.reached(9, [0.0], 2.0)                    # too few, whatever the spread
    assert stop.reached(10, [0.01, 0.02], 0.1)
    assert not stop.reached(10, [0.01, 0.03], 0.1)
    assert stop.reached(10, [0.5], 1.1)                       # time is up
    assert stop.reached(100, [0.5], 0.1)
    assert stop.reached(2, [0.5], 5.1)                        # a call of seconds


def test_what_repeating_cannot_narrow_does_not_keep_it_going():
    steady = estimate([50.0] * 10)
    assert steady.spread == 0.0 and steady.width == pytest.approx(2 * SYSTEMATIC)
    assert compare([50.0] * 10, [60.0] * 10).spread == 0.0
    for stop in (QUICK, FULL):
        assert stop.reached(stop.least, [steady.spread], 0.0)


def test_batches_fit_the_deadline():
    stop = Stop(least=20, most=200)
    assert _batch(stop, 0, 100.0) == 20
    assert _batch(stop, 5, 100.0) == 15
    assert _batch(stop, 40, 100.0) == 10
    assert _batch(stop, 198, 100.0) == 2
    assert _batch(stop, 0, 3e6) == 1                          # three seconds a round: one at a time
    assert _batch(stop, 0, 1e5) * 1e5 <= BATCH_S * 1e6


class Recording:
    """Stands for an event of the device: says what it stands between."""

    log: list[str] = []

    def __init__(self, enable_timing: bool) -> None: ...

    def record(self) -> None:
        self.log.append("mark")

    def elapsed_time(self, other: Recording) -> float:
        return 0.01


def test_every_timed_launch_is_prepared_and_one_of_a_batch_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    """The order of what is enqueued, which needs no device: poison, flush, mark, launch, mark; one copy a batch, at random."""
    import torch

    log = Recording.log = []
    monkeypatch.setattr(torch.cuda, "Event", Recording)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch, "sum", lambda *args, **more: log.append("flush"))

    class Target:
        facts = H200

        def wait(self) -> None:
            log.append("wait")

    watch = Stopwatch.__new__(Stopwatch)
    watch.target, watch.buffer, watch.sink = Target(), torch.zeros(1), torch.zeros(())

    def keep(number: int):
        log.append(f"keep {number}")
        return lambda: log.append(f"look {number}")

    candidate = Contender("candidate", [lambda n=n: log.append(f"launch {n}") for n in range(3)],
                          before=[lambda n=n: log.append(f"poison {n}") for n in range(3)], after=[lambda n=n: keep(n) for n in range(3)])
    baseline = Contender("eager", [lambda: log.append("eager")])
    places = set()
    for _ in range(40):
        log.clear()
        candidate.turn = 0
        assert len(watch._measure([candidate, baseline, baseline, candidate] * 2, "stream")) == 8
        kept = next(item for item in log if item.startswith("keep"))
        place = log.index(kept)
        assert log[place - 5:place - 1] == [kept.replace("keep", "poison"), "flush", "mark", kept.replace("keep", "launch")]
        assert log[-2:] == ["wait", kept.replace("keep", "look")] and sum(item.startswith("keep") for item in log) == 1
        assert [item for item in log if item.startswith(("poison", "launch"))] == [
            f"{what} {n}" for n in (0, 1, 2, 0) for what in ("poison", "launch")]
        places.add(place)
    assert len(places) == 4, "all of a batch's launches come in turn, by chance"


def test_the_claim_is_against_the_faster_baseline():
    def us(value: float) -> Estimate:
        return Estimate(value, value, value, 1)

    found = Comparison("stream", us(10), {"eager": us(50), "compile": us(20)}, {}, 1)
    assert found.better() == "compile"


def state(mhz: int = 1980, reasons: int = 0, processes: tuple[int, ...] = (5,)) -> DeviceState:
    return DeviceState(mhz, reasons, 50, processes)


def test_disturbances_are_said():
    assert disturbances(state(), state(), 5) == ()
    assert disturbances(state(reasons=POWER_CAP), state(reasons=POWER_CAP), 5) == ()
    assert disturbances(state(), state(reasons=0x40), 5) == ("hardware thermal slowdown",)
    assert disturbances(state(), state(mhz=1200), 5) == ("the clock fell from 1980 to 1200 MHz",)
    assert disturbances(state(mhz=345), state(), 5) == ()     # waking up is no throttling
    assert disturbances(state(), state(processes=(5, 9)), 5) == ("2 processes use the device",)
    assert disturbances(state(processes=(9,)), state(processes=(9,)), 5) == ()            # this one, seen from outside its container
    assert disturbances(state(processes=(8, 9)), state(), 7) != ()
    assert disturbances(None, state(), 5) == ()


def test_without_the_management_library_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert Nvml("0000:00:00.0").look() is None


@pytest.mark.parametrize("variables", [{}, {"XDG_DATA_HOME": "/data"}, {"XDG_DATA_HOME": "relative"}, {"FORGE_HOME": "~/f"}])
def test_ceilings_are_where_the_store_says(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]):
    for name in ("XDG_DATA_HOME", "FORGE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert data_folder() == UserPaths.find().data


def test_the_kernels_that_measure_ceilings_build():
    for program in (*(copy_program(1000, threads, unroll) for threads, unroll in ceilings.SHAPES), empty_program()):
        image = compile_program(program, kind="cubin", arch="sm_90")
        assert {kernel.name for kernel in image.kernels} == {"copy", "empty"}
        assert all(kernel.spill_bytes == 0 for kernel in image.kernels)
    launch, = copy_program(1025, 256, 4).launches
    assert launch.grid == (2, 1, 1)                           # the last vectors are in a block of their own


def test_stored_ceilings(tmp_path):
    import msgspec

    found = Ceilings(ceilings.FORMAT, "NVIDIA H200 x", 13000, 4.1e12, 3.5, {"bfloat16": 8e14}, 1.0)
    path = tmp_path / "x.json"
    path.write_bytes(msgspec.json.encode(found))
    assert ceilings._stored(path) == found
    assert found.apply(H200).copy_bytes_per_s == 4.1e12 and found.apply(H200).launch_us == 3.5
    for damaged in (b"", b"{}", msgspec.json.encode(msgspec.structs.replace(found, format=99))):
        path.write_bytes(damaged)
        assert ceilings._stored(path) is None
    assert ceilings._stored(tmp_path / "missing") is None
    assert os.listdir(tmp_path) == ["x.json"]


def test_every_variant_is_really_compiled():
    """torch.compile gives up on a code object after a few compilations and quietly runs eager: the baseline would be wrong."""
    import torch

    from forge_tui.engine.judge.device_timing import fresh_function

    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    for size in range(2, 22):
        function = torch.compile(fresh_function(torch.nn.functional.relu), dynamic=False, fullgraph=True, backend=backend)
        function([torch.ones(size)], {})
        function([torch.ones(size)], {})
    assert len(compilations) == 20
