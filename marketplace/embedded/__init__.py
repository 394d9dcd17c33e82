"""Real servers without installation: PostgreSQL and Redis from wheels, under supervisord.

``services`` knows how each server starts, ``stack`` runs a set of processes
under one supervisor, ``demo`` tells the story of one sale. The package imports
no Django: it prepares the environment that Django's settings read.
"""
