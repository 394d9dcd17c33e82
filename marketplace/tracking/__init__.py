"""What was measured of jobs, sent to the service where their owners follow experiments."""
