"""Models on a Ray cluster: served by Ray Serve over any number of replicas, and as stages of Ray Data pipelines.

build_app() is in serve_app.py, BatchGenerator and BatchEmbedder are in batch_inference.py.
Both need pip install "embedllm[ray]". See docs/scale.md.
"""
