"""What every stage uses: places in code, text, logs, counters, global state."""
