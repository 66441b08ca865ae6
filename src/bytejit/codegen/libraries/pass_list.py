"""The passes that choose libraries on a CPU, in the order in which they run; what runs them on any device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bytejit.codegen.aten.concatenations import share_concatenations
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.rewrite import Constants, copy_graph, drop_dead
from bytejit.codegen.aten.scattered_sums import scatter_into_addends
from bytejit.codegen.passes import Journal, Pass, run_passes

from .attention import choose_attentions
from .choices import ATEN, Choices, on_graph
from .layout import choose_convs, choose_layouts
from .linear import choose_linears
from .sums_of_products import join_sums
from .written_attention import join_attentions


def choose_libraries(
    aten_graph: Aten,
    passes: Sequence[Pass],
    tune: Any,
    library: Any,
    constants: Constants | None = None,
    journal: Journal | None = None,
) -> Aten:
    """The same graph with the fastest library calls and layouts for them; a new `Aten` is returned.

    passes: `CPU_PASSES`, `GPU_PASSES`, or a target's own. tune: `kernels.tune.Tuner`. library: the module `kernels.library`.
    Both are arguments because codegen does not import kernels. constants: given by `freeze`: weights found there may be
    prepacked and get added to it.
    """
    made = dataclasses.replace(aten_graph, graph=copy_graph(aten_graph.graph))
    made = run_passes(ATEN, passes, made, journal, Choices(tune, library, constants))
    drop_dead(made.graph)
    if constants is not None:
        constants.prune(made.graph)
    made.graph.lint()
    return made


CPU_PASSES = (
    on_graph(share_concatenations, "first: layouts follow what is read"),
    on_graph(scatter_into_addends),
    on_graph(join_sums, "before linears: what it makes is a product as others"),
    on_graph(join_attentions, "before linears: a bias is added by kernels that read its product"),
    on_graph(choose_linears, "before attentions: their projections are products"),
    on_graph(choose_attentions),
    on_graph(choose_convs, "last: layouts of the whole graph follow the convolutions"),
)
JOINT_PASSES = (on_graph(choose_layouts, "before a joint graph is cut: both passes take what is saved as it lies"),)
