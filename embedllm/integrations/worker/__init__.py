"""`embedllm worker`: JSON-RPC over stdin and stdout, for programs in any language."""
