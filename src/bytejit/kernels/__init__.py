"""Everything that owns a built binary: source text -> library -> callable, the disk cache, timed choices, machine facts."""
