"""Code objects: they are decoded, analysed, and rewritten with sites. Uses no torch.

Points: the function's start (after RESUME, cells and free variables are set up; in generators after the first yield's
set-up), every jump target and fall-through of a conditional jump, heads of handlers, and the places before and after
every instruction that can break a graph: calls (with KW_NAMES and PRECALL as one unit), attributes, subscripts,
operators, comparisons, imports, `with`, iteration, yield, raise.

Sites: the function's start, jump targets, fall-throughs of conditional jumps, and the places after calls, BEFORE_WITH
and SEND.

- Method loads leave NULL and a bound method, in the order of that Python. The tracer models them the same way.
- Loops are written a second time without sites (`resume_points.find_loops`). While no site in a loop is armed, its
  heads send what reaches them into that copy, by exit ids past those of the points.
- Added instructions have the location of their block's first instruction, so tracebacks stay.
- The code keeps its name, flags, arguments and free variables. Hidden locals start with a dot.
"""
