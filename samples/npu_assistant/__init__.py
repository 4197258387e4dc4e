"""A laptop assistant on top of embedllm: its own documents, tools, a conversation that lasts. See README.md."""
