"""Small whole programs, each run as it is and compiled, and compared in everything a user can see."""
