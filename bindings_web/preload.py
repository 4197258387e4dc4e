"""What a first reply imports, all of it: a page keeps a snapshot of Python after this."""
# ruff: noqa: F401

import encodings.unicode_escape

import jinja2.debug

import embedllm.package.architecture_json
import embedllm.text.jinja_sandbox
import embedllm.web.serve
