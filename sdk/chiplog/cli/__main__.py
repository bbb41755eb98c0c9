"""`python -m chiplog.cli`: the same as the command `chiplog`."""

import sys

from chiplog.cli.root import main

sys.exit(main())
