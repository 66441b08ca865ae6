"""torch's own table of operators (OpInfo) against eager: `make opinfo`, and a sample of it in the suite."""
