"""A Hypothesis strategy that writes small functions over tensors, ints, containers, control flow, closures,
classes, exceptions and mutation, as source text. Every tensor is float32 of shape (3,), so that most programs run to
their end."""

from hypothesis import strategies as st

from .prelude import PRELUDE

HEAD = "def program(x, y, n, items, table, thing):"
UNARY = (
    "torch.sin({})",
    "{}.cos()",
    "{}.tanh()",
    "torch.relu({})",
    "(-{})",
    "abs({})",
    "{}.clamp(-2, 2)",
    "{}.flip(0)",
    "{}.clone()",
    "{}.detach()",
    "{}.roll(1)",
    "{}.exp().clamp(max=9)",
    "torch.nn.functional.softmax({}, 0)",
    "{}[[2, 0, 1]]",
    "{}.view(3, 1).squeeze(1)",
    "{}.cumsum(0)",
    "{}[:]",
    "{}.view(3)",
    "{}.flip(0)[::1]",
    "({} > 0).int()",
    "{}.double().float()",
    "{}.sort()[0]",
)
BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "torch.maximum({}, {})",
    "torch.where({} > 0, {}, 1.0)",
    "{}.add({}, alpha=2)",
    "{} // (abs({}) + 1)",
    "torch.arange(3) * {} + {}",
    "torch.stack([{}, {}]).sum(0)",
    "torch.cat([{}, {}])[1:4]",
)
INPLACE = (
    "{0}.add_(1)",
    "{0}.mul_({1})",
    "{0}[{2}] = {1}[0]",
    "{0} += {1}",
    "{0}[1:] = {1}[:2]",
    "{0}.copy_({1})",
    "{0}[{0} > 1] = 0.5",
    "{0}.zero_()",
    "{0}[:].mul_(2)",
    "{0}[{2}:].add_({1}[{2}:])",
    "{0}.view(3)[{2}] = 4.0",
    "{0}.data.add_(1)",
)
INT_BINARY = (
    "({} + {}) % 11",
    "({} * {}) % 13",
    "{} - {}",
    "({} // (abs({}) + 1))",
    "max({}, {})",
    "({} ^ {}) % 8",
    "divmod({}, {} % 5 + 6)[1]",
)
ERRORS = ("Oops", "ValueError", "KeyError", "(KeyError, ZeroDivisionError)", "Exception")


class Writer:
    """Writes one function. `draw` picks; names in scope are kept by kind; depth bounds nesting, budget the length."""

    def __init__(self, draw):
        self.draw, self.lines, self.fresh, self.budget = draw, [], 0, draw(st.integers(3, 14))
        self.tensors, self.ints = ["x", "y"], ["n"]
        self.lists, self.dicts, self.things = ["items"], ["table"], ["thing"]
        self.loops = 0

    def pick(self, seq):
        return self.draw(st.sampled_from(seq))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) < percent

    def name(self, kind: str) -> str:
        self.fresh += 1
        return f"{kind}{self.fresh}"

    def out(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # -------------------------------------------------------------- expressions
    def tensor(self, deep: int = 2) -> str:
        kind = self.draw(st.integers(0, 9)) if deep else 0
        if kind <= 3:
            return self.pick(self.tensors)
        if kind <= 5:
            return self.pick(UNARY).format(self.tensor(deep - 1))
        if kind == 6:
            return "(" + self.pick(BINARY).format(self.tensor(deep - 1), self.tensor(deep - 1)) + ")"
        if kind == 7:
            return f"({self.tensor(deep - 1)} {self.pick('+-*')} {self.int(1)})"
        return self.pick(self._tensor_forms(deep))

    def _tensor_forms(self, deep):
        t, i, o = self.tensor(deep - 1), self.int(1), self.pick(self.things)
        return (
            f"{o}.t",
            f"{o}.scaled",
            f"{o}.step({i})",
            f"{o}({t})",
            f"({o} + {t}).t",
            f"(lambda v, k={i}: v * k)({t})",
            f"({t} if {self.cond()} else {self.tensor(0)})",
            f"walk([{i}, {{'k': ({t},)}}], {t})[0]",
            f"functools.reduce(lambda a, b: a + b, [{t}, {self.tensor(0)}])",
            f"sum(steps({t}, {i}), {t})",
            f"[v * 2 for v in ({t}, {self.tensor(0)}) if {self.cond()} or v is not None][-1]",
            f"next(iter([{t}]))",
            f"{{'a': {t}}}['a']",
            f"torch.full((3,), float({i}))",
            f"max([{t}], key=lambda v: 1)",
        )

    def int(self, deep: int = 2) -> str:
        kind = self.draw(st.integers(0, 9)) if deep else self.draw(st.integers(0, 4))
        if kind <= 2:
            return self.pick(self.ints)
        if kind <= 4:
            return str(self.draw(st.integers(0, 6)))
        if kind <= 6:
            return self.pick(INT_BINARY).format(self.int(deep - 1), self.int(deep - 1))
        o, c = self.pick(self.things), self.pick(self.lists)
        return self.pick(
            (
                f"len({c})",
                f"len({o})",
                f"{o}.k",
                f"{self.pick(self.tensors)}.shape[0]",
                f"len(str({o}.k) + repr(n))",
                f"sum(i * i for i in range({self.int(0)} % 5))",
                f"{self.pick(self.dicts)}.get('a', 3)",
                "TOTAL",
                f"int({self.cond()})",
                f"fact({self.int(0)} % 5)",
                f"sorted([{self.int(0)}, 2], key=lambda v: -v)[0]",
                f"{o}.rate",
                "len(LOG)",
                f"torch.arange({self.int(0)} % 5).sum().item()",
                f"len({c}[1:])",
                f"next(iter(()), {self.int(0)})",
                f"next(steps(x, 0), {self.int(0)})",
                f"sum(k * {self.int(0)} for k, v in enumerate({c}))",
                f"len([*{self.pick(self.dicts)}])",
            )
        )

    def cond(self) -> str:
        return self.pick(
            (
                f"{self.int(1)} > {self.int(0)}",
                f"{self.int(1)} % 2 == 0",
                f"'a' in {self.pick(self.dicts)}",
                "True",
                f"0 < {self.int(0)} <= 4",
                f"not {self.pick(self.lists)}",
                f"isinstance({self.pick(self.things)}, Child)",
                f"{self.pick(self.tensors)} is {self.pick(self.tensors)}",
                f"hasattr({self.pick(self.things)}, 'note')",
                f"{self.pick(self.tensors)}.dim() == 1 and {self.int(0)} > 2",
            )
        )

    def tensor_cond(self) -> str:
        t = self.tensor(1)
        return self.pick(
            (f"{t}.sum() > 0", f"({t} > 0).all()", f"bool(({t} < 0).any())", f"{t}.mean().item() < 0.3", f"not {t}[0] > 0")
        )

    # -------------------------------------------------------------- statements
    def block(self, depth: int) -> None:
        """One to four statements; names made in them end with the block."""
        kept = [list(s) for s in (self.tensors, self.ints, self.lists, self.dicts, self.things)]
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(depth)
        self.tensors, self.ints, self.lists, self.dicts, self.things = kept

    def statement(self, depth: int) -> None:
        self.budget -= 1
        simple = (
            self.assign_tensor,
            self.assign_tensor,
            self.assign_int,
            self.mutate_tensor,
            self.containers,
            self.objects,
            self.say,
            self.callees,
            self.tuples,
            self.methods,
            self.training,
            self.dying,
        )
        nested = (
            self.branch,
            self.branch_tensor,
            self.loop_for,
            self.loop_while,
            self.attempt,
            self.within,
            self.within,
            self.closure,
            self.generator,
            self.match,
        )
        if depth < 4 and self.budget > 0 and self.chance(45):
            self.pick(nested)(depth)
        else:
            self.pick(simple)(depth)

    def assign_tensor(self, d):
        if self.chance(40):
            return self.out(d, f"{self.pick(self.tensors)} = {self.tensor()}")
        name, expr = self.name("t"), self.tensor()
        self.out(d, f"{name} = {expr}")
        self.tensors.append(name)

    def assign_int(self, d):
        if self.chance(40):
            return self.out(d, f"{self.pick(self.ints)} {self.pick(('=', '+=', '-='))} {self.int()}")
        name, expr = self.name("i"), self.int()
        self.out(d, f"{name} = (w := {expr}) + w" if self.chance(20) else f"{name} = {expr}")
        self.ints.append(name)

    def mutate_tensor(self, d):
        self.out(d, self.pick(INPLACE).format(self.pick(self.tensors), self.tensor(1), self.draw(st.integers(0, 2))))

    def containers(self, d):
        c, m, t, i = self.pick(self.lists), self.pick(self.dicts), self.tensor(1), self.int(1)
        kind = self.draw(st.integers(0, 12))
        if kind == 0:
            name = self.name("c")
            self.out(d, f"{name} = [{t}, {i}, {self.pick(self.lists)}]")
            self.lists.append(name)
        elif kind == 1:
            name = self.name("m")
            self.out(d, f"{name} = {{'a': {i}, 't': {t}, **{m}}}")
            self.dicts.append(name)
        elif kind == 2:
            a, b = self.name("t"), self.name("i")
            self.out(d, f"{a}, *_, {b} = [{t}, *{c}, {i}]")
            self.tensors.append(a)
            self.ints.append(b)
        else:
            self.out(
                d,
                self.pick(
                    (
                        f"{c}.append({t})",
                        f"{c}.append({i})",
                        f"{c}[:1] = [{i}, {t}]",
                        f"{c}.extend([{i}, {i}])",
                        f"{c}.insert(0, {t})",
                        f"{c}.pop()",
                        f"{c}.reverse()",
                        f"{c}[0] = {i}",
                        f"{m}['a'] = {i}",
                        f"{m}.update(t={t}, z={i})",
                        f"{m}.pop('a', None)",
                        f"{m}[('k', {i})] = {t}",
                        f"{c}[1:1] = {c}",
                        f"{c}.append({c}[:])",
                        f"{m}['a'] = {m}.pop('a', 1)",
                        f"{c}[::2] = {c}[::2]",
                        f"{m}.update({{k: 1 for k in 'ba'}})",
                        f"{m}.setdefault('s', []).append({i})",
                        f"del {c}[-1:]",
                        f"{c} += [{t}]",
                        f"{m}['a'] += {i}",
                        f"{c} = list(zip({c}, range({i})))" if c != "items" else f"items = items + [{t}]",
                        f"LOG.append({i})",
                    )
                ),
            )

    def callees(self, d):
        """Calls that break within the callee, or raise there."""
        t, i = self.tensor(1), self.int(1)
        self.out(
            d,
            f"{self.pick(self.tensors)} = "
            + self.pick(
                (
                    f"noisy({t}, {i})",
                    f"chooses({t}, {i})",
                    f"chooses(noisy({t}, {i}), n)",
                    f"adder({t}, {i})({self.tensor(0)})",
                    f"adder(noisy({t}, 1), {i})(chooses({self.tensor(0)}, 2))",
                    f"[g({t}) for g in [adder({t}, k) for k in (1, {i})]][-1]",
                    f"functools.partial(noisy, k={i})({t})",
                    f"max(map(len, ([1], [2, {i}]))) * chooses({t}, 0)",
                    f"(torch.outer({t}, {t}) @ {self.tensor(0)}).float()",
                    f"next(v for v in steps(chooses({t}, 1), 3))",
                )
            ),
        )

    def tuples(self, d):
        """NamedTuples made, changed and taken apart."""
        name, t, i = self.name("p"), self.tensor(1), self.int(1)
        self.out(d, f"{name} = Pair({t}, {i})" if self.chance(70) else f"{name} = Pair({t})")
        u = self.name("t")
        self.out(
            d,
            self.pick(
                (
                    f"{u}, _ = {name}",
                    f"{u} = {name}.left",
                    f"{u} = {name}._replace(right={i}).both()",
                    f"{u} = {name}.both() + len({name})",
                    f"{u} = Pair(*{name}).left",
                    f"{u} = dict({name}._asdict())['left']",
                    f"{u} = noisy({name}.left, {name}.right)",
                    f"{u} = sorted([{name}], key=lambda q: q.right)[0].both()",
                    f"{u} = max({name}, Pair({name}.left, {i}), key=lambda q: q.right).left",
                )
            ),
        )
        self.tensors.append(u)

    def methods(self, d):
        """Bound methods, kept and called later."""
        f, o, t, i = self.name("f"), self.pick(self.things), self.tensor(1), self.int(1)
        made, called = self.pick(
            (
                (f"{o}.step", f"{f}({i})"),
                (f"functools.partial({o}.step, {i})", f"{f}()"),
                (f"{o}.__add__", f"{f}({t}).t"),
                (f"{o}.__call__", f"{f}({t})"),
                (f"lambda v, m={o}.step: m(1) + v", f"{f}({t})"),
                ("items.append", f"({f}({t}), y)[1]"),
                (f"[{o}.step, {o}.__call__]", f"{f}[1]({f}[0](1))"),
                (f"{t}.add", f"{f}({i}) - {f}({self.tensor(0)})"),
            )
        )
        self.out(d, f"{f} = {made}")
        if self.chance(30):
            self.out(d, self.pick((f"print({i})", f"{o}.k += 1", f"{o} = Thing({t}, 2)")))
        self.out(d, f"{self.pick(self.tensors)} = {called}")

    def training(self, d):
        """Training steps, and gradients of small functions."""
        t, i = self.tensor(1), self.int(1)
        if self.chance(40):
            name = self.name("net")
            self.out(d, f"{name} = Learner({self.int(0)})")
            if self.chance(50):
                self.out(d, f"for _ in range({self.draw(st.integers(1, 3))}): x = train({name}, {t}, n > 3)")
            self.out(d, f"{self.pick(self.tensors)} = train({name}, {t}) + {name}.steps * {name}.seen")
            return
        fn = self.pick(
            (
                f"lambda w: w * {self.tensor(0)}.detach()",
                "lambda w: chooses(w, 1)",
                f"lambda w: (w * {i}).sin().exp()",
                f"lambda w: noisy(w, {i}) * w",
                "torch.tanh",
                "thing",
            )
        )
        self.out(d, f"{self.pick(self.tensors)} = slope({t}, {fn})")

    def dying(self, d):
        """Objects that die while the program runs or between its calls, and what tells of their end."""
        t, i = self.tensor(1), self.int(1)
        o, f = self.name("o"), self.name("f")
        self.out(
            d,
            self.pick(
                (
                    f"{o} = keep(Thing({t}, {i}), {self.draw(st.integers(0, 2))})",
                    f"{o} = keep(Child({t}, {i}))",
                    f"{o} = Thing({t}, {i}); {o}.me = weakref.ref({o})",
                    f"{o} = type('Made', (Thing,), {{'rate': {i}}})({t}, 1)",
                    f"{o} = Thing({t}, {i}); {f} = weakref.ref({o}); {o} = Thing({t}, 1); LOG.append({f}() is None)",
                )
            ),
        )
        if self.chance(30):
            self.out(d, f"KEPT.append(adder({t}, {i}))" if self.chance(50) else f"KEPT.append({o}.step)")
            self.out(d, "del KEPT[:-2]")
        self.things.append(o)

    def objects(self, d):
        o, t, i = self.pick(self.things), self.tensor(1), self.int(1)
        if self.chance(35):
            name = self.name("o")
            self.out(d, f"{name} = {self.pick(('Thing', 'Child'))}({t}, {i})")
            self.things.append(name)
            return
        self.out(
            d,
            self.pick(
                (
                    f"{o}.t = {t}",
                    f"{o}.k += {i}",
                    f"{o}.step()",
                    f"{o}.note = {t}",
                    f"{o}.seen = [{i}]",
                    f"{o}.seen.append({t})",
                    f"setattr({o}, 'k', {i})",
                    f"{o}.__dict__['k'] = {i}",
                    f"{o} = {o} + {t}",
                    "global TOTAL; TOTAL += 1",
                )
            ).replace("global TOTAL; ", ""),
        )

    def say(self, d):
        self.out(
            d,
            self.pick(
                (
                    f"print({self.int(1)}, 'at', n)",
                    f'print(f"{{{self.int(1)}:03d}}", {self.pick(self.tensors)}.shape)',
                    f"LOG.append({self.int(1)})",
                    f"print({self.pick(self.tensors)})",
                )
            ),
        )

    def branch(self, d):
        self._branch(d, self.cond())

    def branch_tensor(self, d):
        self._branch(d, self.tensor_cond())

    def _branch(self, d, cond):
        self.out(d, f"if {cond}:")
        self.block(d + 1)
        if self.chance(50):
            self.out(d, "else:")
            self.block(d + 1)
        if self.chance(10):
            self.out(d, f"if {self.cond()}:")
            self.out(d + 1, f"return {self.tensor(1)}, {self.int(1)}")

    def loop_for(self, d):
        i = self.name("i")
        over = self.pick(
            (
                f"range({self.int(0)} % 4)",
                "range(3)",
                f"list({self.pick(self.lists)})[:3]",
                "(1, 2)",
                f"sorted({{3, 1, {self.draw(st.integers(4, 6))}}})",
            )
        )
        plain = not over.startswith("list(")
        self.out(d, f"for {i} in {over}:")
        if plain:
            self.ints.append(i)
        self.loop_body(d)
        if plain:
            self.ints.remove(i)

    def loop_while(self, d):
        i = self.name("i")
        self.out(d, f"{i} = {self.draw(st.integers(1, 4))}")
        self.out(d, f"while {i} > 0{' and ' + self.cond() if self.chance(30) else ''}:")
        self.out(d + 1, f"{i} -= 1")
        self.loop_body(d)

    def loop_body(self, d):
        self.loops += 1
        self.block(d + 1)
        if self.chance(30):
            self.out(d + 1, f"if {self.tensor_cond() if self.chance(30) else self.cond()}:")
            self.out(d + 2, self.pick(("break", "continue")))
        self.loops -= 1
        if self.chance(15):
            self.out(d, "else:")
            self.block(d + 1)

    def attempt(self, d):
        self.out(d, "try:")
        self.block(d + 1)
        if self.chance(70):
            self.out(
                d + 1,
                self.pick(
                    (
                        f"{self.pick(self.tensors)} = refuse({self.tensor(1)}, {self.int(1)})",
                        f"raise Oops({self.int(0)})",
                        f"raise KeyError('k') from ValueError({self.int(0)})",
                        f"n = 7 // ({self.int(0)} % 3)",
                        f"n = {{}}[{self.int(0)}]",
                        f"y = {self.tensor(1)} + torch.ones(4)",
                    )
                ),
            )
        with_handler = self.chance(80)
        if with_handler:
            self.out(d, f"except {self.pick(ERRORS)} as e:")
            self.out(d + 1, "LOG.append(type(e).__name__)")
            self.block(d + 1)
            if self.chance(15):
                self.out(d + 1, self.pick(("raise", "raise Oops(9)", "raise Oops(8) from e")))
        if not with_handler or self.chance(30):
            self.out(d, "finally:")
            self.block(d + 1)

    def within(self, d):
        self.out(
            d,
            "with "
            + self.pick(
                (
                    "torch.no_grad()",
                    "Scope(LOG)",
                    "Scope(LOG, ValueError)",
                    "scoped(LOG) as q",
                    "Scope(LOG), scoped(LOG)",
                    "contextlib.suppress(KeyError)",
                    "torch.set_grad_enabled(True)",
                    "torch.no_grad(), Scope(LOG)",
                    "torch.enable_grad()",
                    "torch.inference_mode()",
                    "torch.autocast('cpu', torch.bfloat16)",
                    "torch.autocast('cpu', enabled=False)",
                    "torch.set_grad_enabled(n > 3)",
                    "swallowing(LOG, Oops, KeyError)",
                    "contextlib.ExitStack() as q",
                    "contextlib.nullcontext(2) as q",
                    "torch.no_grad(), scoped(LOG) as q, swallowing(LOG, ValueError)",
                )
            )
            + ":",
        )
        self.block(d + 1)
        if self.chance(20):
            self.out(d + 1, f"y = refuse({self.tensor(1)}, {self.int(1)})")

    def closure(self, d):
        f, free = self.name("f"), [v for v in self.ints if v != "n"] or ["n"]
        v = self.pick(free)
        self.out(d, f"def {f}(p, k={self.int(0)}, *rest, s=1):")
        if self.chance(50):
            self.out(d + 1, f"nonlocal {v}")
            self.out(d + 1, f"{v} += 1")
        kept = list(self.tensors)
        self.tensors = ["p", *self.tensors]
        if self.chance(30):
            self.out(d + 1, f"if {self.tensor_cond() if self.chance(40) else self.cond()}:")
            self.out(d + 2, f"return {self.tensor(1)} * k")
        self.out(d + 1, f"return {self.tensor(1)} + k * s + len(rest) + {v}")
        self.tensors = kept
        self.out(d, f"{self.pick(self.tensors)} = {f}({self.tensor(1)}{self.pick(('', ', 2', ', 1, 2, 3', ', s=3'))})")

    def generator(self, d):
        g, t = self.name("g"), self.name("t")
        self.out(d, f"{g} = steps({self.tensor(1)}, {self.int(1)})")
        self.out(d, f"{t} = next({g}, {self.tensor(0)})")
        self.tensors.append(t)
        self.out(d, self.pick((f"for v in {g}:", f"for v, q in zip({g}, itertools.count()):")))
        self.out(d + 1, f"{t} = {t} + v")

    def match(self, d):
        pair = f"({self.int(0)}, {self.int(0)})"
        subject = self.pick((self.int(1), pair, self.pick(self.dicts), self.pick(self.lists)))
        self.out(d, f"match {subject}:")
        for pattern in ("0 | 1", "int(a) if a > 3", "[a, *_]", "{'a': a}"):
            if self.chance(60):
                self.out(d + 1, f"case {pattern}:")
                self.block(d + 2)
        self.out(d + 1, "case _:")
        self.block(d + 2)

    def program(self) -> str:
        """The whole text."""
        while self.budget > 0:
            self.statement(1)
        ends = ", ".join(
            self.draw(st.permutations(self.tensors[:4]))
            + [self.pick(self.ints), self.pick(self.lists), self.pick(self.dicts), self.pick(self.things)]
        )
        self.out(1, f"return {ends}")
        head = [HEAD] + (["    global TOTAL"] if any("TOTAL +=" in s for s in self.lines) else [])
        return PRELUDE + "\n\n" + "\n".join(head + self.lines) + "\n"


@st.composite
def programs(draw) -> str:
    """Source text that defines `program(x, y, n, items, table, thing)`."""
    return Writer(draw).program()
