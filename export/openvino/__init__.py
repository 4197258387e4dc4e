"""The OpenVINO graphs of an architecture."""
