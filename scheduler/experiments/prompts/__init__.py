"""PromptTuner reproduced: simulator, baselines, sweeps, lookup quality and report."""
