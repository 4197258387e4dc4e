"""Starts the application: `python samples/desktop` from the repository, `python -m desktop` from samples/."""

import sys
from pathlib import Path

if not __package__ and not getattr(
    sys, "frozen", False
):  # started by its path, so that Python put this folder on the module path and not its parent
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from desktop.application import main

sys.exit(main())
