"""The auction of each zone: bids in, decisions out, every step in a hash-chained log.

``services`` (bids, wake-ups) and ``selectors`` are what other apps call; ``lane``
decides, ``book`` keeps the engine in step with the log, ``settlement`` moves the
money of jobs that ended, ``verify`` replays what happened.
"""
