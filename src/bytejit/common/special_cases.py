"""Special cases: what bytejit knows by the name of its module, because nothing better says what it is. One row each.

A module's name is no identity: anyone may give a class any `__module__`. So a row is used only where a wrong match does no
more than choose the slower or the more careful way, or where Python itself gives the name.
"""

from __future__ import annotations

from dataclasses import field
from types import FrameType

from bytejit.common.light_dataclass import light_dataclass

_MODULE = type.__dict__["__module__"].__get__  # past a metaclass's own, which is the program's code


def module_of(obj: object) -> object:
    """What a function or a class keeps as its `__module__`; None for what has none."""
    try:
        return _MODULE(obj) if issubclass(type(obj), type) else getattr(obj, "__module__", None)
    except AttributeError:  # a class in C that has lost it
        return None


@light_dataclass(frozen=True)
class Origin:
    """Functions, classes and frames of some modules. A name that ends in "*" stands for all names that begin so."""

    modules: tuple[str, ...]
    reason: str
    _exact: frozenset[str] = field(init=False, repr=False, compare=False)
    _starts: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_exact", frozenset(m for m in self.modules if not m.endswith("*")))
        object.__setattr__(self, "_starts", tuple(m[:-1] for m in self.modules if m.endswith("*")))

    def named(self, module: object) -> bool:
        """Whether a module of this name is one of them."""
        return module in self._exact or isinstance(module, str) and module.startswith(self._starts)

    def made(self, obj: object) -> bool:
        """Whether a function or a class says that it is defined in one of them."""
        return self.named(module_of(obj))

    def runs(self, namespace: dict) -> bool:
        """Whether code with these globals is a part of one of them."""
        return self.named(namespace.get("__name__"))

    def frame(self, frame: FrameType) -> bool:
        """Whether a frame runs code of one of them."""
        return self.runs(frame.f_globals)


TORCH = Origin(("torch.*",), "torch's own Python: a user's line, mark, override or hook is one outside of it")
NOT_THE_USERS = Origin(
    (
        "torch.*",
        "bytejit.*",
        "logging",
        "logging.*",
        "warnings",
        "_py_warnings",
        "contextlib",
        "weakref",
        "_weakrefset",
        "typing",
        "functools",
    ),
    "Python that the tracer follows, in which no line is the user's",
)
NO_TENSORS = Origin(
    (
        *("logging", "logging.*", "warnings", "_py_warnings", "traceback", "json", "json.*", "pickle", "threading", "subprocess"),
        *("random", "torch.utils.hooks", "torch.serialization"),
        # files, processes, texts and time
        *("os", "posixpath", "ntpath", "genericpath", "pathlib*", "shutil", "tempfile", "glob", "fnmatch"),
        *("io", "codecs", "encodings*", "csv", "zipfile*", "tarfile", "gzip", "configparser", "argparse"),
        *("pprint", "textwrap", "re", "re.*", "inspect", "linecache", "datetime", "_pydatetime", "_strptime"),
        *("calendar", "locale", "platform", "uuid", "socket", "http.*", "urllib.*", "email.*"),
    ),
    "a call into these that breaks a graph computes no tensors: nothing of it is compiled",
)
NUMBERS = Origin(("math", "cmath", "numpy", "torch"), "pi, e, inf and the like are the numbers that they are")
TORCH_PACKAGES = Origin(("torch", "torch.*"), "classes whose __instancecheck__ knows tensors only")
TORCH_CALLABLES = Origin(("torch._C", "torch._ops"), "callable objects of torch that are operators, of no public class")
TORCH_TOP = Origin(("torch",), "built-in functions of torch.* that are operators: of all others torch says where they are from")
SCRIPT_MODULE, GRAPH_BREAK = "ScriptModule", "graph_break"  # names in TORCH_SCRIPT and TORCH_COMPILER
TORCH_SCRIPT = Origin(("torch.jit*",), "torch.jit.ScriptModule, without an import of torch.jit")
TORCH_FUNCTIONAL = Origin(("torch.functional",), "functions that torch exports under its own name")
TORCH_FUNCTIONS = Origin(
    ("torch.nn.functional", "torch.functional"), "their Python hands numbers on to operators; of another's it is not known"
)
DISTRIBUTED = Origin(("torch.nn.parallel.distributed",), "what its wrapper does before and after a module runs as it is")
COLLECTIVES = Origin(
    ("torch.distributed.distributed_c10d",), "calls that meet other processes run as they are, at the program's line"
)
SHARDED_TENSORS = Origin(
    ("torch.distributed.tensor", "torch.distributed.tensor._api"),
    "tensors over several processes are made, moved and gathered as they are",
)
DEVICE_MESHES = Origin(("torch.distributed.device_mesh",), "a mesh of processes: known by its identity, as nobody changes it")
PLACEMENTS = Origin(
    ("torch.distributed.tensor.placement_types",), "how a tensor lies over several processes: values that nobody changes"
)
PLACEMENT_METHODS = Origin(("torch._C._distributed",), "methods of such values in C++: they ask, and change nothing")
LOGGING = Origin(("logging",), "a logger's message that is to be said breaks the graph")
WARNINGS = Origin(("warnings", "_py_warnings"), "functions that set what becomes of warnings run as they are")
LAYERS = Origin(
    ("torch.nn.modules.*",),
    "layers without others in them: one whose weights run operations themselves, and that breaks, stays whole",
)
QUANTISED = Origin(
    ("torch.ao.nn.quantized.*", "torch.ao.nn.intrinsic.quantized.*"),
    "layers that hold one library call: one that breaks stays whole",
)
PACKED_SEQUENCES = Origin(("torch.nn.utils.rnn",), "functions that pack sequences run as they are: they go by tensors' values")
CHECKPOINTS = Origin(("torch.utils.checkpoint",), "what is run again in the backward pass runs the same both times")
LIGHTNING = Origin(
    ("pytorch_lightning.*", "lightning.pytorch.*"),
    "modules whose Trainer calls steps of theirs: these are compiled too",
)
TORCH_COMPILER = Origin(("torch._dynamo*",), "marks of torch's compiler, which is never imported here")
OPERATORS = Origin(
    ("torch", "torch.*", "bytejit", "bytejit.*", "_operator", "builtins"), "calls in a graph that run no Python of the program"
)
OWN = Origin(("torch", "torch.*", "bytejit", "bytejit.*"), "threads in these do not use the device for the program")
BYTEJIT = Origin(("bytejit.*",), "backends of bytejit's own")
ENUM = Origin(("enum",), "attributes of enum members that enum itself defines are read, not inlined: they have no effects")
CLASS_CHECKS = Origin(("abc", "typing", "enum"), "metaclasses whose instance checks have no effects: they are asked, not inlined")
NAMED_TUPLES = Origin(("namedtuple_*",), "the __new__ that collections.namedtuple writes: it has one line and no effects")
COVERAGE = Origin(("coverage", "coverage.*"), "a trace function that counts lines only: the compiler's lines do it no harm")
PLAIN_TEXT = Origin(
    ("builtins", "torch", "torch.*", "numpy", "numpy.*", "bytejit", "bytejit.*", "types"),
    "types whose repr runs no code of the program, so that a message may show a value",
)
SHORT_NAMES = Origin(("builtins", "__main__"), "types that CPython's messages name without their module")
BUILTINS = Origin(("builtins",), "built-in types, which CPython's messages name without their module")
