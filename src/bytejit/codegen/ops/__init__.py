"""The op table: one op, one row, by family."""
