"""`embedllm worker`: models for a host application, over stdin and stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from embedllm.cli.options import common_options


@click.command(short_help="Serve models to another program over JSON-RPC (stdio).")
@common_options
def worker() -> None:
    """Serve models to a host application, which starts this command as a subprocess.

    JSON-RPC 2.0, one JSON object per line, on stdin and stdout; methods: initialize, devices, load, generate, chat,
    cancel, unload, shutdown. See docs/worker.md. It ends with 'shutdown' or when stdin ends.
    """
    from embedllm.integrations.worker.server import Worker

    stdin, stdout = _take_over()
    server = Worker(lambda size: os.read(stdin, size), _writer(stdout))
    code = server.serve()
    if not server.is_idle:  # a runtime in the middle of its work would be torn down under its own threads
        sys.stderr.flush()
        os._exit(code)
    click.get_current_context().exit(code)


def _take_over() -> tuple[int, int]:
    """Descriptors of the real stdin and stdout, which nothing else can reach from now on.

    What a library prints goes to stderr, even when it was written in C; a child process inherits neither.
    """
    stdin, stdout = os.dup(0), os.dup(1)
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    os.close(nowhere)
    return stdin, stdout


def _writer(descriptor: int) -> Callable[[bytes], None]:
    def write(message: bytes) -> None:
        rest = memoryview(message)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    return write
