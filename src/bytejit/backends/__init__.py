"""The built-in backends, and the compilers of a graph for each device."""
