"""What a user can do about a graph break, by how its reason begins, where the place that breaks says nothing itself."""

from __future__ import annotations

import functools
import re

OUTSIDE = "do it before or after the compiled function"
ANY = "move this step out of the compiled function, or leave it there: what comes before and after it is compiled"
# (pattern, what to do): the first whose pattern is found at a reason's beginning counts
ADVICE: tuple[tuple[str, str], ...] = (
    # values of tensors
    (
        r"what (nonzero|argwhere|where)\b.* depends on",
        "use torch.where(mask, a, b), or sums over the mask, whose sizes do not depend on values",
    ),
    (
        r"what (getitem|index|masked_select)\b.* depends on",
        "use torch.where(mask, x, 0), or multiply by the mask: the size of x[mask] depends on values",
    ),
    (
        r"what .* depends on",
        "use a form whose sizes do not depend on values, or call it before or after the compiled function",
    ),
    (
        r"(Tensor\.(tolist|item|numpy|__array__)\(\)|(int|float|bool|complex)\(\) of a tensor|.*needs (a tensor's|its) value"
        r"|a value that exists only)",
        "compute with the tensor itself, or return it and read its value after the call",
    ),
    (
        r".*(tensor's values?|tensor) (used as|decides|looked for)",
        "use tensor operations (torch.where, indexing by a tensor) instead",
    ),
    (r"text made of", "return the tensor, and make the text of it after the call"),
    (r"(str|repr|format)\(\) of", "make the text before or after the compiled function"),
    (
        r"a (number|size) that is known only when",
        "use tensor operations in place of the number, or choose it before the compiled function",
    ),
    (
        r"(a random number|a draw|random numbers)",
        "draw with torch's functions, or before the compiled function, and pass the numbers in",
    ),
    # what stands for several calls: transforms, branches, checkpoints, backward passes
    (
        r"(torch\.cond|a while_loop|associative_scan)",
        "let each function return new tensors, of the same shapes and dtypes in each, and change nothing else",
    ),
    (
        r"(torch\.func\.|.*function transform|a vjp)",
        "give it a function that takes tensors and returns new ones, writes nothing and draws nothing",
    ),
    (
        r"torch\.utils\.checkpoint",
        "call it with use_reentrant=False and a function that takes and returns tensors, and changes nothing else",
    ),
    (
        r"(the backward pass|a backward pass|torch\.autograd\.grad|Tensor\.backward|a gradient|the number of gradients)",
        "go backward from one loss without further arguments, or after the compiled function",
    ),
    (
        r".*(an autograd function|\.apply (of|with))",
        "let its forward take and return tensors only, by position, and change nothing else",
    ),
    # NumPy
    (
        r".*(NumPy|numpy|tensor version|strides in a graph|arrays? )",
        "use the torch function of that purpose, or NumPy before or after the compiled function",
    ),
    # calls
    (
        r".*(that it does not take|does not fit its parameters|called on what is no|called with \w+ arguments|wrong number of)",
        "the original code raises by itself: nothing is to be done where that is meant",
    ),
    (r"a call of (print|.*\bwarn)", "print after the call, from what the compiled function returns"),
    (r"a call of time\.sleep", OUTSIDE),
    (r"(an import|a call of __import__|.*\bimport)", "import at the top of the file"),
    (
        r"(a call of (_thread|threading)|a lock)",
        "start threads, and make and take locks, outside of the compiled function",
    ),
    (
        r".*no way to infer",
        "call it outside of the compiled function; of an operator of your own register a torch.library.register_fake",
    ),
    (
        r"a call of (io\.|posix\.|nt\.|os\.|.*(IO|File|Socket|socket|Buffered\w+)\w*\.|_?socket|subprocess|shutil)",
        "read and write files before or after the compiled function",
    ),
    (
        r"a call of (time\.|datetime\.|date\.|uuid\.|_uuid\.)",
        "ask the clock before or after the compiled function, and pass the time in",
    ),
    (r"a call of .*raises", "the original code raises by itself: nothing is to be done where that is meant"),
    (r"a call of (eval|exec|dir|locals|globals|vars|compile)\b", "do without it in the compiled function"),
    (
        r"(a warning|warnings\.|filters of warnings|.*\bwarns\b|.*catch_warnings)",
        "warn, and set filters, outside of the compiled function",
    ),
    (r"json\.", "make JSON before or after the compiled function"),
    (r"(a format|formatting|a message)", "make the text before or after the compiled function"),
    (r".*\bcache", "call it once before the compiled function, with arguments that are known there"),
    (r"a first call of", "call it once before the compiled function: its result is then known"),
    (r"a function of functools\.singledispatch", "register all its functions before the compiled function is called"),
    (
        r"a call of (a )?torch\.jit",
        "compile the Python function that the script was made of",
    ),
    (
        r"(a call of|making a)",
        f"{OUTSIDE}; where it computes with tensors, register it with torch.library.custom_op",
    ),
    (
        r"(a long loop|an iteration over more|more than|.* without tensor work|calls nested|.*in a long loop)",
        "use one operation on a whole tensor in place of the loop or the recursion, or do it before the compiled function",
    ),
    # exceptions
    (r"(raises|.* raises )", "the original code raises by itself: nothing is to be done where that is meant"),
    (r".*exception", "raise and catch it within the compiled function, or outside of it as a whole"),
    # objects that come from outside, or stay
    (
        r"(.*\b(ContextVar|Token|context variable))",
        "set and reset context variables outside of the compiled function",
    ),
    (
        r"(.*used as a key|.*own __hash__|a bound method as a key|keys whose|hash\(\)|a keyword that|.*\b__hash__|.*keys change)",
        "use texts, numbers, or tuples of them, as keys",
    ),
    (
        r"(.*\ba set\b|set\.)",
        "use a list, a tuple, or sorted(...), in place of the set",
    ),
    (
        r".*(sequence of its own kind|for a sequence|subclass of str|by its methods|in its own way|that is not modelled)",
        "pass plain lists, tuples, dicts, texts and numbers of them",
    ),
    (
        r"(comparing|.* compared\b|an __eq__|an object looked for|`in` on)",
        "compare numbers, texts or the same kinds of tensors, or compare before the compiled function",
    ),
    (
        r"(indexing|a mask whose|a \w+ used as an index|a tensor indexed by)",
        "index tensors with ints, slices, None, ... and tensors; lists and tuples with ints and slices",
    ),
    (
        r"a (quantised|nested|torch\.\w+|name) tensor",
        "pass plain tensors in: .dequantize(), .to_dense(), .to_padded_tensor()",
    ),
    (
        r"a (tensor that is conjugated|fake tensor)",
        "pass a plain tensor in: .resolve_conj().resolve_neg()",
    ),
    (
        r"(.*legacy constructor|Tensor\.(new|_make_subclass|as_subclass))",
        "make it with torch.tensor, torch.empty or x.new_empty",
    ),
    (
        r"(a tensor's|whether a|the attribute \w+ of a|the identity of|.*tensor that needs no gradient|a view that autograd)",
        "read or set it before the compiled function, or after the call, of what it returns",
    ),
    (
        r"(.*changes how operations run|torch\.(use_deterministic|cuda|inference_mode)|a seed)",
        "set it once, before the compiled function is called",
    ),
    (
        r".*(__dict__|namespace|(locals|dir|id|super)\(\)|annotations|descriptor|\b(type|object)\.|__kwdefaults__|type param)",
        "look at classes, namespaces and identities before the compiled function",
    ),
    (
        r".*(with these arguments|with keyword arguments|arguments by name|argument by name|called with|with arguments)",
        "call it with its usual arguments (numbers, texts, tensors), or outside of the compiled function",
    ),
    (
        r".*(after (a change|the region)|which the region has changed|which the region|the region changed)",
        "do it before what changes the object, or outside of the compiled function",
    ),
    (
        r"(the end of|a context manager|.*\bmanager\b)",
        "have the whole `with` block within the compiled function, or outside of it",
    ),
    (
        r"(an iterator|a generator|a yield|.*\bgenerator\b)",
        "make a list of the items before, or iterate within the compiled function",
    ),
    (r"(the async|an async|async)", "compile the functions that it calls, in place of the async function"),
    (r"(a copy of|copy\.)", "copy it before the compiled function, or give its class a plain state"),
    (
        r".*(a C object|a lock|a weak|finalizer|C code)",
        "read what is needed of it before the compiled function, and pass that in",
    ),
    (r".*__torch_(dispatch|function)__|a tensor of the subclass", "pass plain tensors in, and wrap the results outside"),
    (r"a logger", "make loggers where the module begins: log = logging.getLogger(__name__)"),
    (r".*hook", "register hooks before the compiled function"),
    (r"(a|an abstract) (meta)?class\b", "make and change classes outside of the compiled function"),
    (r"(setting|deleting|reading)", OUTSIDE),
    (r".*(is marked|graph_break)", "nothing, where the mark is meant: the program asks for this break"),
)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), do) for pattern, do in ADVICE)


def advice(reason: str) -> str:
    """What a user can do about a break with this reason. One line, never empty."""
    return next((do for pattern, do in _patterns() if pattern.match(reason)), ANY)
