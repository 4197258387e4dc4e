"""Writing a package: the plan of the weights file, streamed tensors, metadata, the folder that appears whole."""
