"""How a region is left: values made again, effects replayed, and the jump back or the return, as Python statements."""
