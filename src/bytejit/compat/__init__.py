"""Every private interface of torch and of CPython that bytejit uses (`table.py`), and packages that may be missing."""
