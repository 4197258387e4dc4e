"""Classes that other libraries expect of a model: for the `llm` command, LangChain and LlamaIndex; MCP; the worker.

Each module imports its library, which an extra installs: embedllm[llm], embedllm[langchain], embedllm[llama-index],
embedllm[mcp]. The worker, for programs in other languages, needs none.
"""
