"""Tests of bytejit: unit tests mirror src/; programs/, models/ and fuzz/ run whole functions against eager."""
