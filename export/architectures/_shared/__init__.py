"""What descriptions of several families share."""
