"""`python -m mplab`: the command `mplab`, where its script is not on the path."""

import sys

from mplab.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
