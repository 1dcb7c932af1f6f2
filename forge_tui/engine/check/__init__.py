"""`forge-tui check`: one kernel file run on the interpreter, without a project: faults, orders of warps, counts."""
