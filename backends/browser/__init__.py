"""onnxruntime-web in a browser, through Pyodide."""
