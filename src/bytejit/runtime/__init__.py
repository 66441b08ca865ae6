"""Rewritten code at run time: dispatch of sites, what is not tried again, rollback, compiled modules."""
