"""What happens to a site when its compile raises, and to a call when its graph raises."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.common import interrupts, logs, registry, special_cases
from bytejit.common.errors import BackendFailed, BadSetting, BehindWrites, DeviceFault, Unsupported, backend_name, note_place
from bytejit.common.graph_info import Report
from bytejit.common.options import Options

from .entry import Args, Entry, Exit, NotCompiled, own_exit
from .function import CompiledFunction
from .ownership import BYTEJIT, CALLED, PROGRAM, UserError, owner_of, without_ours


def compile_or_leave(
    function: CompiledFunction, point: int, options: Options, compile: Callable[[], Entry | NotCompiled | None]
) -> Entry | NotCompiled | None:
    """The result of `compile`. When it raises an internal fault, the site runs the original code from now on."""
    where, back_off = function.where, function.back_off
    try:
        return compile()
    except (Unsupported, BadSetting):
        raise
    except UserError as e:
        if not options.debug:
            e.error.__traceback__ = without_ours(e.error)
        raise
    except RecursionError:  # values nested deeper than the compiler can follow: the original code may
        if function.settings.nopython:
            raise Unsupported("values nested too deep", where, "Python's stack ends", "nest them less") from None
        registry.count("fallbacks", f"values nested too deep in {where.function}")
    except torch.OutOfMemoryError:  # of a GPU: the original code may do with less, and raises itself where it does not
        registry.count("fallbacks", f"no memory on the GPU to compile {where.function}")
        put_off = back_off.put_off(point)
        if back_off.starved(point):
            back_off.leave(point)
        return put_off
    except Exception as e:
        if function.settings.nopython:
            raise
        logs.fault(e, "compiling a region", where, options)
    back_off.leave(point)
    return None


def leave_uncompiled(function: CompiledFunction, reason: str) -> NotCompiled:
    """Tracing took too long: the function runs as it is from now on. Raises: Unsupported under nopython."""
    where = function.where
    if function.settings.nopython:
        raise Unsupported(reason, where, "the limit is config.trace_time_limit", "raise the limit")
    registry.count("fallbacks", f"{reason} in {where.function}")
    logs.warn_once(f"slow {where.short}", f"{where.function} ({where.short}) runs uncompiled: {reason}")
    function.back_off.leave_all()
    return NotCompiled.COVERED


def exit_of_failed_graph(
    function: CompiledFunction,
    point: int,
    restore: tuple[tuple[Callable, tuple], ...],
    own_backend: bool,
    runs_once: bool,
    report: Report | None,
    debug: bool,
) -> Callable[[BaseException, Args], Exit]:
    """Returns the function that makes an entry's exit when its graph raises: the original code runs on from the site, and raises
    by itself.

    An exception of the program's own backend, or of its own Python code in a graph, reaches the program. Of Python code the
    original code raises it, where the region has other effects or may catch it (`runs_once` is False). An error of a GPU without
    memory reaches the program where inputs may have been written by then, and a checkpoint what its hooks raise: they count the
    tensors that are saved, and would see them twice. So does any exception behind the graph's writes.

    restore: calls that put back the state that the graph set. report: the graph's; None where the region may catch errors. debug:
    the frames of bytejit stay in tracebacks.
    """
    doing = logs.ran_place(function.settings.backend)

    def failed(error: BaseException, flat: Args) -> Exit:
        for setter, args in restore:  # here, too, few frames may be left
            setter(*args)
        if type(error) is RecursionError:  # another call might need a frame more
            return flat, point
        behind = error if isinstance(error, BehindWrites) else None
        error = error if behind is None or behind.__cause__ is None else behind.__cause__
        if isinstance(error, DeviceFault) or not isinstance(error, Exception) or interrupts.from_handler(error):
            raise error  # an earlier call's, which running this one again would hide; or an interrupt, or a timeout
        if special_cases.CHECKPOINTS.made(type(error)):
            raise error
        if report is not None and report.writes_early and isinstance(error, torch.OutOfMemoryError):
            raise error
        owner = owner_of(error)
        if behind is not None:
            raise error if owner in (CALLED, PROGRAM) else behind
        if not own_backend and _is_of_unpacking(error):
            name = backend_name(function.settings.backend)
            raise BackendFailed(name, f"made what does not return the graph's outputs: {error}", function.where) from None
        if runs_once and owner in (CALLED, PROGRAM) or not own_backend and owner in (PROGRAM, BYTEJIT):
            if not debug and owner != BYTEJIT:
                error.__traceback__ = without_ours(error)
            raise error if own_backend or owner == CALLED else note_place(error, doing, function.where)
        registry.count("fallbacks", f"a graph raised {type(error).__name__} in {function.where.function}")
        return own_exit(point, flat)

    return failed


def _is_of_unpacking(error: Exception) -> bool:
    """Whether it was raised where an entry takes the outputs of its graph."""
    trace = error.__traceback__
    return isinstance(error, (TypeError, ValueError)) and trace is not None and trace.tb_next is None and "unpack" in str(error)
