"""Code objects: decoded, analysed, and written anew with sites. No torch."""
