"""`python -m mplab`: the command `mplab`, where its script is not on the path."""

import sys

from mplab.cli import main

if __name__ == "__main__":
    sys.exit(main())
