"""The generate loop: requests, admission, the rule that picks tokens, batches, beam search, streams."""
