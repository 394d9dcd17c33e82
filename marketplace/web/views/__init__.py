"""The pages of bidders: one view per address, one domain call per view."""
