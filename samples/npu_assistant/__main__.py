"""Starts the assistant: `python samples/npu_assistant` from the repository, `python -m npu_assistant` from samples/."""

import sys
from pathlib import Path

if not __package__:  # started by its path, so that Python put this folder on the module path and not its parent
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from npu_assistant.terminal import main

main(prog_name="npu_assistant")
