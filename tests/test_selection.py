"""Which operators a run works on."""

from __future__ import annotations

import msgspec
import pytest
from scripted import NORM, SOFTMAX, VIEW, make_variant

from forge_tui.cuda.device import H200
from forge_tui.engine.capture import at_floor, device_and_cpu_us, waits_for_cpu
from forge_tui.engine.cards import FORMAT, OperatorFile
from forge_tui.engine.selection import select_variants
from forge_tui.errors import ProjectError

TINY = msgspec.structs.replace(make_variant("tanh", 2, calls=1), time_us=4.1)


def cards(kind: str) -> OperatorFile:
    return OperatorFile(format=FORMAT, model="m", device=H200, time_kind=kind, forward_us=400.0,
                        variants=(NORM, SOFTMAX, TINY, VIEW), skipped=(), torch="2")


def names(*patterns: str, kind: str = "device") -> list[str]:
    return [variant.operator.rpartition(".")[2] for variant in select_variants(cards(kind), patterns)]


def test_without_patterns_all_that_are_worth_it_the_most_recoverable_first() -> None:
    assert names() == ["softmax", "layer_norm"], "tanh could save 0.1 of 304 us; a view cannot be replaced"
    assert names(kind="cpu") == ["softmax", "layer_norm", "tanh"], "CPU times do not say what a GPU would save"


def test_a_call_that_costs_the_cpu_more_than_a_routed_one_is_worth_it_where_forwards_wait_for_it() -> None:
    waiting = msgspec.structs.replace(TINY, issue_us=35.0)
    assert (TINY.saving_us, waiting.saving_us) == (pytest.approx(TINY.time_us - TINY.floor_us), 25.0)
    launch_bound = msgspec.structs.replace(cards("device"), variants=(NORM, SOFTMAX, waiting, VIEW), launch_bound=True)
    assert [variant.operator.rpartition(".")[2] for variant in select_variants(launch_bound, ())] == ["softmax", "layer_norm", "tanh"]


@pytest.mark.parametrize(("issue_us", "forward_us", "bound"), [
    (30.0, 500.0, True),  # most of the forward is neither device nor issuing: the CPU's all the same
    (70.0, 500.0, True), (70.0, 90.0, False),  # the device works two thirds of it
    (9.0, 500.0, False), (0.0, 1.0, False)])
def test_a_forward_waits_for_its_cpu_where_the_device_works_little_and_issuing_takes_longer(issue_us: float, forward_us: float, bound: bool) -> None:
    """Six calls of 10 us on the device; a region of them is not counted beside them."""
    calls = [msgspec.structs.replace(item, time_us=10.0, issue_us=issue_us) for item in (SOFTMAX, NORM)]
    region = msgspec.structs.replace(NORM, key="f" * 12, covers={NORM.key: 2}, time_us=900.0, issue_us=900.0)
    device, issued = device_and_cpu_us([*calls, region])
    assert (device, issued) == (60.0, 6 * issue_us) and waits_for_cpu(device, issued, forward_us) is bound


def test_a_busy_device_waits_for_no_cpu() -> None:
    assert not waits_for_cpu(64_000.0, 3_000.0, 4_000.0)


@pytest.mark.parametrize(("launch_bound", "issue_us", "offered"), [(False, 35.0, False), (True, 35.0, True), (True, 10.5, False)])
def test_a_call_at_the_floor_is_offered_where_its_cpu_time_counts(launch_bound: bool, issue_us: float, offered: bool) -> None:
    found = at_floor(msgspec.structs.replace(TINY, issue_us=issue_us), launch_bound)
    assert found.offered is offered and found.reason.startswith("" if offered else "already at the floor")
    assert found.issue_us == (issue_us if launch_bound else 0.0)


def test_patterns_name_operators_in_every_usual_way() -> None:
    for pattern in ("softmax", "*soft*", "torch.nn.functional.softmax", "torch.*.softmax", SOFTMAX.key, SOFTMAX.key[:5]):
        assert names(pattern) == ["softmax"]
    assert names("tanh") == ["tanh"], "named, it is worked on"
    assert names("layer_norm", "soft*", "*") == ["softmax", "layer_norm", "tanh"]


def test_one_pattern_may_name_only_what_no_kernel_may_replace_where_another_names_more() -> None:
    said: list[str] = []
    found = select_variants(cards("device"), ["view", "softmax"], said.append)
    assert [variant.key for variant in found] == [SOFTMAX.key]
    assert said == ["`view` names only operators that no kernel may replace: a view moves no data"]


@pytest.mark.parametrize(("pattern", "words"), [("laier_norm", "did you mean `layer_norm`"), ("view", "a view moves no data"),
                                                ("???", "names no operator")])
def test_a_pattern_that_names_nothing_is_an_error(pattern: str, words: str) -> None:
    with pytest.raises(ProjectError, match=words):
        try:
            names(pattern)
        except ProjectError as error:
            raise ProjectError(str(error)) from error
