"""The values of a plan's names for one call, one device and (once chosen) one setting."""

from __future__ import annotations

import difflib

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.kernelfile.evaluation import Lookup, evaluate
from forge_tui.engine.kernelfile.expressions import Expression, ExpressionError
from forge_tui.engine.kernelfile.facts import call_names
from forge_tui.engine.kernelfile.plan import Entry, Plan
from forge_tui.specs import Call, Value


class Names:
    """Looks names up: the plan's own first (each sees only the ones before it), then results, arguments, the device.

    A let or define that fails keeps its error until someone asks for its value, so that a guard can speak first.
    """

    def __init__(self, plan: Plan, call: Call, device: DeviceFacts) -> None:
        self.plan = plan
        self.outside = call_names(call, device)
        self.position = {name: index for index, name in enumerate(plan.own_names())}
        self.tuned = tuned_names(plan)
        self.setting: dict[str, int] | None = None
        self.values: dict[str, int | ExpressionError] = {}
        self._evaluate([*plan.let, *(entry for entry in plan.define if entry.name not in self.tuned)])

    def with_setting(self, setting: dict[str, int]) -> Names:
        """These names with the tunables chosen."""
        chosen = object.__new__(Names)
        chosen.__dict__.update(self.__dict__)
        chosen.setting = setting
        chosen.values = {**self.values, **setting}
        chosen._evaluate([entry for entry in self.plan.define if entry.name in self.tuned])
        return chosen

    def lookup(self, name: str) -> Value:
        """For requires, workspaces and launches, which see everything."""
        return self._get(name, len(self.position))

    def counting(self, i: int | None) -> Lookup:
        """`lookup` with `i` known, for a launch that repeats."""
        return self.lookup if i is None else lambda name: i if name == "i" else self.lookup(name)

    def _evaluate(self, entries: list[Entry]) -> None:
        for entry in entries:
            limit = self.position[entry.name]
            try:
                value = evaluate(entry.expression, lambda name, limit=limit: self._get(name, limit))
                self.values[entry.name] = value  # type: ignore[assignment]
            except ExpressionError as error:
                self.values[entry.name] = error

    def _get(self, name: str, limit: int) -> Value:
        position = self.position.get(name)
        if position is not None and position < limit:
            value = self.values[name]
            if isinstance(value, ExpressionError):
                raise value
            return value
        if name in self.outside:
            return self.outside[name]
        raise self._unknown(name)

    def _unknown(self, name: str) -> ExpressionError:
        if any(workspace.name == name for workspace in self.plan.workspaces):
            return ExpressionError(f"`{name}` is a workspace and has no value", "pass it in args; compute its sizes from names")
        if name == "i":
            return ExpressionError("`i` has no value here", "it counts the runs of a [[launch]] that has `repeat`")
        known = [*self.position, *self.outside]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        return ExpressionError(f"`{name}` is not known", f"{hint}names here: {', '.join(known)}")


def tuned_names(plan: Plan) -> frozenset[str]:
    """Tunables, and defines that depend on one: a require with any of these filters settings."""
    tuned = set(plan.tune)
    for entry in plan.define:
        if depends(entry.expression, tuned):
            tuned.add(entry.name)
    return frozenset(tuned)


def depends(expression: Expression, names: set[str] | frozenset[str]) -> bool:
    return not expression.names.isdisjoint(names)
