"""When Python looks for garbage in processes that bids wait for.

Looking through all that a process holds takes a tenth of a second and more, in which no request is
answered. What is loaded stays anyway, and a crowd's young garbage is found without it.
"""

import gc

#: Objects made before the young are looked through; rounds of that before the next older are;
#: and rounds of those before all are, which at hundreds of bids a second is every hour or so.
THRESHOLDS = (10_000, 10, 500)


def freeze_gc() -> None:
    """What the process holds now is not looked through again, and what comes, more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
