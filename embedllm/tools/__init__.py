"""Tool calls and reasoning in replies: the families' formats, parsed as a stream."""
