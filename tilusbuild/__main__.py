"""`python -m tilusbuild` is the `tilusbuild` command."""

import sys

from tilusbuild.cli.main import main

sys.exit(main())
