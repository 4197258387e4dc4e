"""onnxruntime-genai, for folders in several graphs."""
