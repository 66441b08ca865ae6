"""Random programs against eager. `python -m tests.fuzz --count 10000`."""
