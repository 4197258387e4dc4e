"""`python -m embedllm` is the command line."""

from embedllm.cli import main

main()
