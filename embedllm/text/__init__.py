"""Text to tokens and back: tokenizers, streams with stop strings, chat templates, prompts."""
