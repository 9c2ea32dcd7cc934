"""``python -m lossnet``: the command line, as ``torchrun -m lossnet`` starts it."""

import sys

from lossnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
