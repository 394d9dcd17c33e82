"""Serverless and serverful capacity."""
