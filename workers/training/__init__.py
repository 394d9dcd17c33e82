"""Training of many adapters on one resident base model, in one fused step.

``architectures`` which models, and which of their projections carry adapters ·
``packing`` sequences of all jobs into one token stream · ``packed_model`` the frozen
base over such a stream · ``multi_lora`` the adapters beside its linear layers, which
``adapter_stack`` keeps · ``loss`` · ``optimizer`` · ``job`` one job's state ·
``fused_trainer`` the loop · ``checkpoint`` · ``adapter_export`` · ``data``.

Tensor shapes are suffixed: ``T`` packed tokens, ``S`` sequences,
``L`` padded sequence length, ``M`` trained tokens, ``D`` input width, ``O`` output
width, ``R`` rank, ``H`` heads, ``V`` vocabulary.
"""

import os

# Matrices and packs change size with every job: without it, a GPU's allocator keeps a block of
# each size. Read when a process first takes GPU memory.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
