"""The program `embedllm`, and `python -m embedllm`: the command line, whose import Ctrl-C may interrupt."""

import sys


def main() -> None:
    """Entry point: the imports take a moment, which is no time for a traceback."""
    try:
        from embedllm.cli.main import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted.\n")
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
