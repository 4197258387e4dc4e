"""`python -m embedllm` is the command line."""

from embedllm.cli.main import main

main()
