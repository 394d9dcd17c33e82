"""A node's resident base models and the jobs that train on them."""
