"""Models of Python objects: attributes, calls, classes, containers, exceptions, iterators."""
