"""Context variables: what one holds is read, and guarded, in the context of the call; `set` and `reset` are made when the
region ends: the graph breaks before code of the program that only runs with the graph. A `set` that its own `reset` has
undone is not made at all, unless its token leaves the region."""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import NoneType

from bytejit.guards.references import Ref
from bytejit.guards.sources import Computed, KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, DeferredVar, Known, Var, expect
from bytejit.tracer.core.versions import newer


class TokenVar(DeferredVar):
    """The token that `set` returned in the region. old: the variable's former value; None if the region had not set it.
    used: the token was passed to `reset`. undone: neither `set` nor `reset` is called at the exit."""

    __slots__ = ("var", "old", "used", "undone")

    def __init__(self, var: ContextVar, args: list[Var], old: Var | None, step: int) -> None:
        super().__init__(Token, ContextVar.set, args, step)
        self.var, self.old, self.used, self.undone = var, old, False, False


class ContextVariables(Component):
    """The part of the tracer that holds the values of context variables."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.held: dict[ContextVar, Var] = {}  # those that the region has set

    def outside(self, var: ContextVar, own_default: bool) -> Var | None:
        """The value of a variable in the caller's context, else its own default; None without either."""
        function = value_or_default if own_default else value_set
        found, source = function(var), Computed(Ref(function), (KnownSource.of(var),))
        if found is Token.MISSING:
            self.t.guard("ID_IS", source, found)
            return None
        return self.t.values.memo_lazy(("context", id(var), own_default), found, lambda: source)

    def set(self, v: Known, value: Var) -> TokenVar:
        made = TokenVar(v.obj, [v, value], self.held.get(v.obj), self.t.limits.steps)
        self.held[v.obj] = value
        self.t.deferred_calls.append(made)
        self.t.effects.mutations += 1
        return made

    def reset(self, v: Known, token: Var) -> None:
        """Raises: Break for a token from outside, of another variable, or used before."""
        if not isinstance(token, TokenVar) or token.var is not v.obj or token.used:
            raise Break("ContextVar.reset with a token that is not of this region, or not of this variable, or used")
        if self.pending(token.var)[-1] is token:
            at = next(i for i, call in enumerate(self.t.deferred_calls) if call is token)
            del self.t.deferred_calls[at]
            token.undone = True
        else:
            self.t.deferred.defer(NoneType, ContextVar.reset, [v, token])
        token.used = True
        if token.old is None:
            del self.held[token.var]
        else:
            self.held[token.var] = token.old

    def token_attribute(self, token: Var, name: str) -> Var:
        """Raises: Break for what is not known of a token."""
        token = expect(token, TokenVar)
        if name == "var":
            return token.args[0]
        if name == "old_value":
            old = token.old or self.outside(token.var, own_default=False)
            return self.t.values.constant(Token.MISSING) if old is None else old
        raise Break(f"Token.{name}")

    def pending(self, var: ContextVar) -> list[DeferredVar]:
        """The calls on a variable that the end of the region makes."""
        ours = (ContextVar.set, ContextVar.reset)
        return [c for c in self.t.deferred_calls if c.function in ours and isinstance(v := c.args[0], Known) and v.obj is var]


def value_or_default(var: ContextVar) -> object:
    """The value of a variable, else its default, else Token.MISSING."""
    try:
        return var.get()
    except LookupError:
        return Token.MISSING


def value_set(var: ContextVar) -> object:
    """The value of a variable, else Token.MISSING."""
    return var.get(Token.MISSING)


def _checked(t: Tracer, args: list[Var], kwargs: dict[str, Var], name: str, counts: tuple[int, ...]) -> tuple[Known, list[Var]]:
    """The variable, and the other arguments. Raises: Break where the call would raise."""
    v = t.values.real(args[0]) if args else None
    if kwargs or len(args) not in counts or not isinstance(v, Known) or not isinstance(v.obj, ContextVar):
        raise Break(f"ContextVar.{name} with these arguments")
    return v, args[1:]


@models(ContextVar.get)
def get(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Returns the value that the region has set, else the one set outside, else the given default, else the variable's own."""
    v, given = _checked(t, args, kwargs, "get", (1, 2))
    found = t.context_variables.held.get(v.obj) or t.context_variables.outside(v.obj, own_default=not given)
    if found is not None:
        return found
    if given:
        return given[0]
    raise t.raised(LookupError(v.obj))


@models(ContextVar.set)
def set_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v, given = _checked(t, args, kwargs, "set", (2,))
    return t.context_variables.set(v, given[0])


@models(ContextVar.reset)
def reset(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v, given = _checked(t, args, kwargs, "reset", (2,))
    t.context_variables.reset(v, t.values.real(given[0]))
    return NONE


@models(*newer(Token, "__enter__"))  # 3.14+: `with variable.set(value):`
def enter(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return args[0]


@models(*newer(Token, "__exit__"))
def leave(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Raises: Break for a token from outside."""
    token = args[0]
    if not isinstance(token, TokenVar):
        raise Break("Token.__exit__ of a token that is not of this region")
    t.context_variables.reset(Known(token.var), token)
    return NONE
