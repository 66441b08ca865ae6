"""Schedule and C++ text."""
