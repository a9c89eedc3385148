"""`python -m hbmwatch`: the same as the command `hbmwatch`."""

import sys

from hbmwatch._cli.main import main

if __name__ == "__main__":
    sys.exit(main())
