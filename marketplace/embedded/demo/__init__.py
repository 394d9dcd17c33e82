"""The demo's story: a small market opens, and two real jobs are sold and run."""
