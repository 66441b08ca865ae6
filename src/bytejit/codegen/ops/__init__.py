"""The op table, and what is known of calls of operators."""
