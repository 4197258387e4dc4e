"""What sessions of several runtimes share: shared KV buffers, windowed retention, recurrent states, top-k logits."""
