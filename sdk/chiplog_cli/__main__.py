"""`python -m chiplog_cli`: the same as the command `chiplog`."""

import sys

from chiplog_cli.root import main

sys.exit(main())
