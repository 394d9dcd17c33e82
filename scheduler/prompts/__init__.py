"""Prompt tuning under SLOs (PromptTuner): the prompt bank, its lookups and the GPU pools."""
