"""Adapters in the forms that other programs take: merged into their base model, and as GGUF.

``python -m workers.exporting`` runs in a process of its own beside a node's training. Nothing here
holds a whole model: tensors are read, merged and written one after another.
"""
