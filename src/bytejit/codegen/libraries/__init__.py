"""Library calls and layouts, matched in the graph and chosen by time."""
