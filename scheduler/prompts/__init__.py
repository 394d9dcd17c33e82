"""Prompt tuning under SLOs, after PromptTuner: which requests the lane takes, and when."""
