"""The whole contract between the market and its nodes; standard library and numpy only.

``job_spec``, ``messages``, ``reports`` and ``probes`` are the values; ``wire`` turns them into JSON
and back strictly. ``records`` reads the rows of a data set: the market checks a file with the code
that a node later trains with. ``token_layout`` makes tokens of rows, and ``work`` counts them.
"""
