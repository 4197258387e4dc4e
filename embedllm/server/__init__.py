"""An HTTP server for models: the dialects of OpenAI and Anthropic, several models, safe by default (docs/server.md).

An endpoint is a row (endpoint.py): its path, the schema of its body, and the function that answers. app.py makes the
ASGI application of the rows, run.py serves it. Needs embedllm[server]: Starlette, uvicorn, prometheus-client.
"""
