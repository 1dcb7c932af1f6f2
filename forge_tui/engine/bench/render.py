"""A bench's document as text."""

from __future__ import annotations

from forge_tui.engine.bench.bench import BenchResult
from forge_tui.engine.bench.rounds import Contender


def render(result: BenchResult) -> str:
    """Lines for a terminal; what could not be measured is a dash with its reason."""
    lines = [f"{result.model} on {result.device}", ""]
    if result.contenders:
        lines.append(f"{'':<28}{'ms':>10}  {'interval':<19}{'over eager':>11}  {'interval':<15}{'peak MiB':>9}")
        lines += [_contender(item) for item in result.contenders]
        lines.append("")
    agreement = result.agreement
    lines.append(f"outputs on {agreement.inputs} held-out inputs (seed {agreement.seed}): forged is {agreement.forged_error:.3g} "
                 "from eager")
    if agreement.eager_float64_error is not None and agreement.forged_float64_error is not None:
        lines.append(f"  from float64: eager {agreement.eager_float64_error:.3g}, forged {agreement.forged_float64_error:.3g}, "
                     f"allowed {agreement.allowed:.3g}")
    if agreement.call_error is not None:
        lines.append(f"  {agreement.calls} calls of kernels beside the original ones on the same tensors: at most {agreement.call_error:.3g} apart")
    if agreement.top1 is not None:
        losses = "" if agreement.loss_eager is None or agreement.loss_forged is None else (
            f"; teacher-forced loss eager {agreement.loss_eager:.5f}, forged {agreement.loss_forged:.5f}")
        lines.append(f"  over {agreement.positions} positions: most likely token agrees in {agreement.top1:.2%}{losses}")
    lines += ["", *(f"{kernel.status:<12}{kernel.variant}  {kernel.operator:<40}{kernel.calls:>7} calls  {_why(kernel.reason, kernel.fallbacks)}"
                    for kernel in result.kernels)]
    lines += ["", f"{'accepted' if result.accepted else 'not accepted'}: {result.reason}"]
    return "\n".join(line.rstrip() for line in lines)


def _contender(item: Contender) -> str:
    if item.us is None or item.interval is None:
        return f"{item.name:<28}{'-':>10}  {item.note}"
    interval = f"{item.interval[0] / 1e3:.3f} to {item.interval[1] / 1e3:.3f}"
    speedup = "" if item.speedup is None else f"{item.speedup:.3f}x"
    gain = "" if item.speedup_interval is None else f"{item.speedup_interval[0]:.3f} to {item.speedup_interval[1]:.3f}"
    peak = "" if item.peak_bytes is None else f"{item.peak_bytes / 2**20:.0f}"
    return f"{item.name:<28}{item.us / 1e3:>10.3f}  {interval:<19}{speedup:>11}  {gain:<15}{peak:>9}"


def _why(reason: str, fallbacks: dict[str, int]) -> str:
    return reason or ", ".join(f"{count} times the original: {guard}" for guard, count in fallbacks.items())
