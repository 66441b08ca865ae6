"""What a trace relied on: sources of values, kinds of guards, the Python and native code that checks them."""
