"""Training of many adapters on one resident base model, in one fused step.

``architectures`` which models, and which of their projections carry adapters ·
``packing`` sequences of all jobs into one token stream · ``packed_model`` the frozen
base over such a stream · ``multi_lora`` the adapters beside its linear layers, which
``adapter_stack`` keeps ·
``loss`` · ``optimizer`` · ``job`` one job's state · ``fused_trainer`` the loop ·
``checkpoint`` · ``adapter_export`` · ``data`` · ``reference`` the slow twins.

Tensor shapes are suffixed: ``T`` packed tokens, ``S`` sequences,
``L`` padded sequence length, ``M`` trained tokens, ``D`` input width, ``O`` output
width, ``R`` rank, ``H`` heads, ``V`` vocabulary.
"""
