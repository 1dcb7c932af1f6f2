"""Which operators a run works on."""

from __future__ import annotations

import msgspec
import pytest
from scripted import NORM, SOFTMAX, VIEW, make_variant

from forge_tui.cuda.device import H200
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


def test_patterns_name_operators_in_every_usual_way() -> None:
    for pattern in ("softmax", "*soft*", "torch.nn.functional.softmax", "torch.*.softmax", SOFTMAX.key, SOFTMAX.key[:5]):
        assert names(pattern) == ["softmax"]
    assert names("tanh") == ["tanh"], "named, it is worked on"
    assert names("layer_norm", "soft*", "*") == ["softmax", "layer_norm", "tanh"]


@pytest.mark.parametrize(("pattern", "words"), [("laier_norm", "did you mean `layer_norm`"), ("view", "a view moves no data"),
                                                ("???", "names no operator")])
def test_a_pattern_that_names_nothing_is_an_error(pattern: str, words: str) -> None:
    with pytest.raises(ProjectError, match=words):
        try:
            names(pattern)
        except ProjectError as error:
            raise ProjectError(str(error)) from error
