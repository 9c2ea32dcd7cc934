"""``python -m lossnet.cli``."""

import sys

from lossnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
