"""Makes docs/reference-cli.md from the help texts of the command line.

python docs/make_reference.py            shows the page
python docs/make_reference.py --write    writes it; a test holds it to be current
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from embedllm.cli.main import cli

PAGE = Path(__file__).parent / "reference-cli.md"
_WIDTH = 100  # columns
_INTRODUCTION = """\
# The command line

Made from `embedllm --help` by `python docs/make_reference.py --write`; change the help texts, not this page.

`python -m embedllm` is the same program. The reply, or what was asked for, goes to stdout; notes, progress and errors
go to stderr.

| exit code | |
| --- | --- |
| 0 | done |
| 1 | failed; the last line on stderr begins with `error:` |
| 2 | the command line was not understood |
| 130 | ended by Ctrl-C; `run` has written what there was of the reply |
| 141 | the reader of stdout went away (`embedllm run ... \\| head`) |

| environment | |
| --- | --- |
| `EMBEDLLM_DEVICE` | the device when `--device` is not given |
| `EMBEDLLM_PROBE` | `off` uses GPUs and plug-ins without trying them first ([probes](devices.md#probes)) |
| `EMBEDLLM_PROBE_TIMEOUT` | seconds that such a trial may take; 120 |
| `EMBEDLLM_FIT` | `off` loads what is not expected to fit into memory ([does it fit?](guide-python.md#does-it-fit)) |
| `EMBEDLLM_TUNED` | `off` loads as if `embedllm tune` had measured nothing ([tuning](devices.md#tuning)) |
| `EMBEDLLM_FOLLOW_LINKS` | `1` follows links that lead out of a model's folder ([links](security.md#links)) |
| `EMBEDLLM_ALLOW_SOFTWARE_GPU` | `1` makes GPUs that are emulated on the CPU available by name ([WebGPU](webgpu.md)) |
| `EMBEDLLM_WEBGPU_CAPTURE` | WebGPU's steps: `0` kernel by kernel, `greedy` [sampled ones](webgpu.md#sampled) singly |
| `EMBEDLLM_HOST_TUNING` | allowed [side effects on the process](guide-embed.md#host); default `pages` |
| `EMBEDLLM_DEBUG` | `1` shows the traceback of an error, as `--debug` does |
| `NO_COLOR` | no colours |

Switches are on by `on`, `1`, `true` or `yes` and off by `off`, `0`, `false` or `no`, in capitals too; another
value counts as not set, with a warning.
"""


def reference_page() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="embedllm", terminal_width=_WIDTH, **cli.context_settings)
    sections = [_section("embedllm", cli, root)]
    for name, command in sorted(cli.commands.items()):
        context = click.Context(command, info_name=name, parent=root, terminal_width=_WIDTH)
        sections.append(_section(f"embedllm {name}", command, context))
    return "\n".join([_INTRODUCTION, *sections])


def _section(title: str, command: click.Command, context: click.Context) -> str:
    return f"## {title}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(reference_page(), encoding="utf-8")
    else:
        click.echo(reference_page(), nl=False)
