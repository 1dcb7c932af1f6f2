"""A workload as the judge takes it: a variant and its sample, recorded as capture records them."""

from __future__ import annotations

import torch

from benchmarks.workloads import Workload
from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.cards import Variant, variant_key
from forge_tui.engine.operators import bind, bytes_moved, canonical, describe, lookup, named_tensors, operations
from forge_tui.engine.statistics import statistics


def case(workload: Workload, device: str, facts: DeviceFacts) -> tuple[Variant, dict[str, torch.Tensor]]:
    """The variant and one sample of its inputs on `device`. Times are left 0: a benchmark measures them."""
    positional, keywords = workload.arguments(device)
    name = canonical(workload.function)
    if name is None:
        raise ValueError(f"{workload.label}: no operator of torch")
    bound = bind(workload.function, positional, keywords)
    with torch.no_grad():
        outputs = lookup(name).call(bound)
    call = describe(name, bound, outputs)
    sample = dict(named_tensors(bound))
    moved = bytes_moved(call)
    variant = Variant(variant_key(call), call, 1, 0.0, moved, operations(call), max(facts.launch_us, moved / facts.copy_bytes_per_s * 1e6),
                      {key: statistics([tensor]) for key, tensor in sample.items()}, (), ("",))
    return variant, sample
