# ruff: noqa: B904, F841, E701, E702, B012 - what the programs do is the point
"""Exceptions"""

import contextlib

import pytest
import torch

import bytejit

from . import targets
from .harness import F, Sign, Turn, case, program


class AppError(ValueError):
    def __init__(self, code, text="app"):
        super().__init__(text)
        self.code = code


def refuse(x, n):
    y = x + n
    if n > 1:
        raise AppError(n, f"n is {n}")
    return y


def reraise(x):
    try:
        raise KeyError("inner")
    except KeyError as e:
        raise RuntimeError("outer") from e


@case(F(4), Turn(0, 2, 2), graphs=1)
def test_try_except_callee(x, n):
    """Exception raised in a traced callee, caught in the caller"""
    try:
        y = refuse(x, n)
    except AppError as e:
        y = x * e.code
    return y + 1


@case(F(4), Turn(1, 0), graphs=1)
def test_try_else_finally(x, n):
    """try/except/else/finally"""
    log = []
    try:
        10 // n
        y = x + 1
    except ZeroDivisionError as e:
        log.append(str(e))
        y = x - 1
    else:
        log.append("else")
        y = y * 2
    finally:
        log.append("finally")
    return y, log


@case(F(4), graphs=1)
def test_finally_return(x):
    """return in try with finally; break and continue through finally"""
    log = []

    def g():
        for i in range(3):
            try:
                if i == 0:
                    continue
                if i == 2:
                    return x + i
            finally:
                log.append(i)

    return g(), log


@case(F(4))
def test_uncaught(x):
    """Uncaught exception: type, args, lines"""
    y = x.sin()
    raise AppError(3, "no")
    return y


@case(F(4))
def test_raise_from(x):
    """`raise from`: `__cause__`, traceback through a callee"""
    x = x + 1
    return reraise(x)


@case(F(4))
def test_raise_context(x):
    """Exception while handling: `__context__`"""
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("second")


@case(F(4))
def test_raise_from_none(x):
    """`raise from None`"""
    try:
        x = {}["k"]
    except KeyError:
        raise ValueError("hidden") from None


@case(F(4), graphs=1)
def test_cause_and_context_inside(x):
    """`__cause__` and `__context__` read inside"""
    try:
        reraise(x)
    except RuntimeError as e:
        return x + 1, type(e.__cause__).__name__, e.__context__ is e.__cause__, e.__suppress_context__, e.args


@case(F(4), graphs=1)
def test_bare_raise(x):
    """Bare `raise`, nested handlers"""
    try:
        try:
            raise AppError(4)
        except ValueError:
            x = x + 1
            raise
    except AppError as e:
        return x * e.code


@case(F(4), graphs=1)
def test_except_tuple_and_hierarchy(x):
    """`except (A, B)`, base classes, order of handlers"""
    out = []
    for e in (KeyError("k"), IndexError("i"), AppError(1), OSError(2, "no")):
        try:
            raise e
        except (KeyError, IndexError) as err:
            out.append(("lookup", type(err).__name__, isinstance(err, LookupError)))
        except ValueError as err:
            out.append(("value", err.code))
        except Exception as err:
            out.append(("other", err.args))
    return x * len(out), out


@case(F(4), graphs=1)
def test_builtin_errors_caught(x):
    """Errors of builtin operations caught: message and type"""
    out = []
    for f in (
        lambda: {}["a"],
        lambda: [1][3],
        lambda: int("x"),
        lambda: 1 / 0,
        lambda: None.foo,
        lambda: len(3),
        lambda: "a" + 1,
        lambda: next(iter(())),
        lambda: undefined_name,  # noqa: F821
        lambda: (1, 2).index(5),
    ):
        try:
            f()
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return x + len(out), out


@case(F(4), graphs=1)
def test_exception_groups(x):
    """Exception groups: `except*`"""
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2), ValueError(3)])
    except* ValueError as g:
        out.append(("v", [e.args for e in g.exceptions]))
    except* KeyError as g:
        out.append(("k", len(g.exceptions)))
    return x + len(out), out


@case(F(4))
def test_exception_group_left(x):
    """Exception group only partly handled"""
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError:
        x = x + 1


@case(F(4), F(3))
def test_tensor_op_error(x, y):
    """Error of a tensor op at run time: eager's exception"""
    z = x.sin()
    return z + y


@case(F(4), F(3))
def test_tensor_op_error_caught(x, y):
    """Error of a tensor op caught by the program"""
    z = x.sin()
    try:
        return z + y
    except RuntimeError as e:
        return z.cos(), "must match" in str(e)


@case(F(4), Turn(1, 7))
def test_index_out_of_range(x, i):
    """IndexError of a tensor"""
    y = x * 2
    return y[i] + 1


@case(F(4), graphs=1)
def test_notes_and_args(x):
    """`add_note`, `args`, `str`, `repr`, equality of exceptions"""
    e = AppError(1, "t")
    e.add_note("n")
    return x + e.code, e.__notes__, e.args, str(e), repr(ValueError(1, "a"))


@case(F(4), graphs=1)
def test_exception_name_deleted(x):
    """The handler's name is gone after the handler"""
    try:
        raise ValueError
    except ValueError as e:
        x = x + 1
    try:
        e
    except NameError:
        return x


@case(Sign(4), breaks=True)
def test_break_inside_try(x):
    """Break inside `try`: handlers still hold after it"""
    try:
        y = x + 1
        if y.sum() > 0:
            raise AppError(2)
        y = y * 2
    except AppError as e:
        y = x * e.code
    finally:
        x = x.sin()
    return x + y


@case(Sign(4), breaks=True)
def test_break_inside_except(x):
    """Break inside an `except` block: the exception in flight is kept"""
    try:
        raise AppError(1)
    except AppError as e:
        if x.sum() > 0:
            y = x + e.code
        else:
            y = x - 1
        try:
            raise
        except ValueError as again:
            return y * 2, again is e


@case(Sign(4), breaks=True)
def test_break_inside_finally(x):
    """Break inside `finally`, while returning"""
    log = []
    try:
        return x + 1, log
    finally:
        if x.sum() > 0:
            log.append("pos")
        log.append("end")


@case(Sign(4))
def test_raise_after_break(x):
    """Uncaught after a break: lines of the traceback"""
    y = x + 1
    if y.sum() < 0:
        y = y * 2
        raise AppError(9, "late")
    return y


@program(F(4))
def test_effects_before_raise():
    """Side effects before an uncaught exception are visible"""
    log = []

    def f(x):
        log.append("a")
        y = x + 1
        log.append(y)
        x.add_(1)
        raise ValueError("after")

    return f, lambda: log


@case(F(4), graphs=1)
def test_stop_iteration_and_key(x):
    """Own exception classes with own `__str__` and attributes made inside"""

    class Stop(Exception):
        def __str__(self):
            return "stopped " + self.args[0]

    try:
        raise Stop("now")
    except Stop as s:
        return x + 1, str(s)


@case(F(4), graphs=1)
def test_raise_class_and_traceback(x):
    """`raise Class`, `with_traceback`, `sys.exc_info`"""
    import sys

    try:
        raise ValueError
    except ValueError as e:
        same = sys.exc_info()[1] is e
        return x + 1, same, e.args


def told_by(log):
    """What a callee sees of the exception that its caller handles"""
    import sys

    log.append((repr(sys.exception()), sys.exc_info()[0]))
    try:
        raise KeyError("k")
    except KeyError as e:
        log.append((sys.exception() is e, sys.exception().__context__))
    log.append(repr(sys.exception()))


@case(F(4), graphs=1)
def test_sys_exception(x):
    """`sys.exception` in and out of handlers, in callees and nested"""
    import sys

    log = [sys.exception()]
    try:
        raise ValueError("v")
    except ValueError as e:
        log.append(sys.exception() is e)
        told_by(log)
        context = log.pop(-2)[1] is e
    log.append(sys.exception())
    return x + 1, [str(i) for i in log], context


@case(F(4), None)
def test_attribute_error_uncaught(x, n):
    """AttributeError and TypeError of the user's own mistake"""
    y = x + 1
    return n.shape + y


@case(F(4))
def test_wrong_call(x):
    """Wrong arguments to a user function"""
    x = x + 1
    return refuse(x)


@case(F(4))
def test_no_such_torch_attribute(x):
    """Unknown attribute of torch and of a tensor"""
    return (x + 1).no_such_method()


def context_names(e):
    names = []
    while e is not None:
        names.append(type(e).__name__)
        e = e.__context__
    return names


@case(F(4), graphs=1)
def test_raised_again_by_name(x):
    """An exception object raised a second time: its context is that of the second raise, without a circle"""
    first, seen = ValueError("first"), []
    for other in (KeyError(1), TypeError(2)):
        try:
            try:
                raise other
            except (KeyError, TypeError):
                raise first
        except ValueError as e:
            seen.append(context_names(e))
    try:
        try:
            raise first
        except ValueError as e:
            raise first.__context__
    except TypeError as e:
        seen.append(context_names(e))
    return x + 1, seen, first.__context__ is None


@case(F(4), graphs=1)
def test_cause_hides_context(x):
    """__cause__ and __suppress_context__ set in this and in the other order, by a raise and by a generator's end"""

    def stops():
        yield 1
        raise StopIteration

    made = [ValueError(n) for n in range(3)]
    made[0].__cause__ = KeyError("a")
    made[1].__cause__ = None
    made[1].__suppress_context__ = False
    made[2].__suppress_context__ = False
    made[2].__cause__ = KeyError("b")
    made[2].__suppress_context__ = False
    try:
        list(stops())
    except RuntimeError as e:
        ended = [e.__suppress_context__, type(e.__cause__), e.__cause__ is e.__context__]
    return x + 1, [e.__suppress_context__ for e in made], made, ended


@case(F(4))
def test_traceback_taken_off(x):
    """with_traceback(None) and __traceback__ = None; raised again it has one"""
    seen = []
    for take in (lambda e: e.with_traceback(None), lambda e: setattr(e, "__traceback__", None)):
        try:
            raise ValueError("v")
        except ValueError as e:
            kept = e
            take(e)
        seen.append(kept.__traceback__ is None)
        try:
            raise kept
        except ValueError as e:
            seen.append(e.__traceback__ is None)
    return x + 1, seen


class Alone:
    def method():
        return super().__init__


@case(F(4), graphs=1)
def test_super_without_arguments_to_find(x):
    """super() in a function without parameters"""
    try:
        Alone.method()
    except RuntimeError as e:
        return x + 1, str(e)


# fmt: off
def one_line_except(x):
    try: bytejit.graph_break()
    except Exception: return x * 100
    return x


def one_line_finally(x):
    try: x.tolist()[0].as_integer_ratio(); bytejit.graph_break()
    finally: return x * 100


def one_line_manager(x):
    with contextlib.suppress(Exception): bytejit.graph_break()
    return x * 100
# fmt: on


@pytest.mark.skipif(targets.TARGET != "bytejit", reason="the break is bytejit's")
@pytest.mark.parametrize("program", [one_line_except, one_line_finally, one_line_manager])
def test_refused_within_one_line(program):
    """What fullgraph refuses is raised past the handlers of a `try: x` in one line"""
    run = targets.compiled(program, targets.Counter(), nopython=True)
    for _ in range(2):
        with pytest.raises(targets.unsupported()):
            run(torch.ones(2))


@program(F(4))
def test_args_that_the_class_defines():
    """An exception whose class has an attribute `args` of its own"""

    class Own(Exception):
        args = 5

    def f(x):
        e = Own("a", 1)
        return x + 1, repr(e), str(e), e.args

    return f


@case(F(4))
def test_notes_that_are_no_list(x):
    """add_note where `__notes__` was set to something else"""
    e = ValueError("a")
    e.__notes__ = "no list"
    try:
        e.add_note("one")
    except TypeError as wrong:
        return x + 1, str(wrong), e.__notes__


@case(F(4))
def test_note_added_to_no_exception(x):
    """BaseException.add_note of another object"""
    try:
        BaseException.add_note(object(), "one")
    except TypeError as wrong:
        return x + 1, type(wrong)


@program(F(3), Turn(0, 1, 2, 3))
def test_groups_behind_a_break():
    """`except*` statements around breaks: groups that were raised before, and what of them is left"""
    log = []

    def f(x, n):
        try:
            try:
                if n == 0:
                    raise ExceptionGroup("g", [ValueError(1), KeyError("k"), ExceptionGroup("in", [TypeError("t")])])
                if n == 1:
                    raise ValueError("plain")
                if n == 2:
                    raise ExceptionGroup("h", [OSError("o")])
            except* ValueError as e:
                log.append([repr(v) for v in e.exceptions])
            except* TypeError as e:
                print("a break")
                log.append(repr(e))
        except ExceptionGroup as rest:
            log.append((rest.message, repr(rest.exceptions), repr(rest.split(KeyError)), repr(rest.subgroup(OSError))))
            log.append(repr(rest.derive([ValueError(2)])))
        else:
            log.append("none")
        return x * len(log)

    return f, lambda: log
