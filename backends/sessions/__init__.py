"""What sessions of several runtimes share: batched steps, windowed retention, recurrent states, top-k logits."""
