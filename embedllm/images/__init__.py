"""Images in a prompt: decoded as hostile files are, preprocessed as the model's own settings say, placed in the prompt.

decode.py reads files by Pillow (embedllm[images]), sources.py takes what a caller gives, processors.py reads
preprocessor_config.json, and prompt.py joins images and the prompt of a chat template. Nothing is decoded before the
features of an image are computed: its size is known from the header.
"""
