"""The exit of a region as Python statements: make values again, replay effects, then return or jump back."""
