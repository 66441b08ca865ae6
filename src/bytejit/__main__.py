"""`python -m bytejit` is `python -m bytejit.verify`."""

import sys

from .verify import main

sys.exit(main())
