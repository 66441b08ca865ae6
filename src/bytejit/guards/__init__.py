"""Guards: the sources of the values that a trace relied on, the kinds of checks, and the Python and native code for them."""
