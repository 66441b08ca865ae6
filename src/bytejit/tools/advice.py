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
        r"(Tensor\.(tolist|item|numpy|__array__)\(\)|(int|float|bool|complex)\(\) of a tensor|.*needs (a tensor's|its) value)",
        "compute with the tensor itself, or return it and read its value after the call",
    ),
    (
        r".*(tensor's values?|tensor) (used as|decides|looked for)",
        "use tensor operations (torch.where, indexing by a tensor) instead",
    ),
    (r"text made of", "return the tensor, and make the text of it after the call"),
    (r"(str|repr|format)\(\) of", "make the text before or after the compiled function"),
    (
        r"a number that is known only when",
        "use tensor operations in place of the number, or choose it before the compiled function",
    ),
    (
        r"(a random number|a draw|random numbers)",
        "draw with torch's functions, or before the compiled function, and pass the numbers in",
    ),
    # calls
    (r"a call of (print|.*\bwarn)", "print after the call, from what the compiled function returns"),
    (r"a call of time\.sleep", OUTSIDE),
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
        r"(a call of|making a)",
        f"{OUTSIDE}; where it computes with tensors, register it with torch.library.custom_op",
    ),
    # exceptions
    (r"(raises|.* raises )", "the original code raises by itself: nothing is to be done where that is meant"),
    (r".*exception", "raise and catch it within the compiled function, or outside of it as a whole"),
    # objects that come from outside, or stay
    (
        r"(the end of|a context manager|.*\bmanager\b)",
        "have the whole `with` block within the compiled function, or outside of it",
    ),
    (
        r"(an iterator|a generator|a yield|.*\bgenerator\b)",
        "make a list of the items before, or iterate within the compiled function",
    ),
    (r"(an import|.*\bimport)", "import at the top of the file"),
    (r"(the async|an async|async)", "compile the functions that it calls, in place of the async function"),
    (r"(a copy of|copy\.)", "copy it before the compiled function, or give its class a plain state"),
    (
        r".*(a C object|a lock|a weak|finalizer|C code)",
        "read what is needed of it before the compiled function, and pass that in",
    ),
    (r".*__torch_(dispatch|function)__|a tensor of the subclass", "pass plain tensors in, and wrap the results outside"),
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
