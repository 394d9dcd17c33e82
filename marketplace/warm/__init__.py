"""Warm starts: finished adapters that new jobs may begin with, and the probes that choose one."""
