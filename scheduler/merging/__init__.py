"""What a job gains from the adapter of another, after Ymir."""
