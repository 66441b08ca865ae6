"""Sizes that are known only at the call: symbols, expressions over them, their ranges and conditions.

A size is an int or a `torch.SymInt` whose node is a `nodes.Node`. sympy is imported when the first symbol is made. torch's
own ShapeEnv is not used: it imports torch._dynamo.

    symbols.is_symbolic(x)                  whether it is a SymInt, SymFloat or SymBool; any_symbolic(xs)
    symbols.hint(x)                         its value when traced; adds no condition
    symbols.expr(x)                         an int, or an expression over s0, s1, ... and the functions of `integer_math`
    symbols.text(x)                         Python text over the names s0, s1
    Env.symbol(name, hint, low, high)       a new symbol, as a SymInt
    Env.range(expr)                         (least, greatest) value; inf where unbounded
    Env.decide(kind, difference)            True, False, or None where neither is known; adds no condition
    Env.conditions                          [(condition, where it was needed)]: guards, besides the ranges of `symbol`

- `bool()` and `int()` of a symbol decide by the value at hand, and the condition becomes a guard of the entry. `int(x)` makes
  the size the constant that it is now. Ask `expr`: where a condition made a size a constant, the SymInt itself does not change.
- Guards are written after the backend has run, which may add conditions too.
- A symbol is made from 2 on, and holds for 1 too (`low=1`) unless something asks whether it is 1. A choice of a new result's
  strides does not ask (`fake.rules.core.differ`, `looks_contiguous`); whether a view or a copy comes out does.
- A float that changes is a symbol f0, f1, ... for any float, nan and infinities too. What is computed of it (`floats`) is an
  opaque expression, which Python computes at the call in Python's own order: results are right to the last bit. A comparison
  is a guard, its negation `not a < b` (nan); a function that may raise guards that it does not.
"""
