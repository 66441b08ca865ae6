"""Lets the tests of codegen import their helpers (graphs, interp) by name."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
