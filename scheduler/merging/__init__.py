"""Task merging after Ymir: what a job gains from another, and which jobs to merge."""
