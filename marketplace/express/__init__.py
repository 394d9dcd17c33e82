"""Prompt tuning: the bank of known prompts, consented to, and the lookups of jobs in it."""
