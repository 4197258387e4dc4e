"""The generate loop: requests, the engine loop and its scheduler, the rule that picks tokens, beam search, streams."""
