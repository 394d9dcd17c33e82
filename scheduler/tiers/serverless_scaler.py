"""Algorithm 1: the serverless scaler, temporal actuator of the pressure."""

from __future__ import annotations


def compute_next_threshold(
    threshold_s: float,
    pressure: float,
    gain_up: float,
    rate_up_s: float,
    gain_down: float,
    rate_down_s: float,
    lowest_s: float,
    highest_s: float,
) -> float:
    """F after one tick (Allpass, section 3.3, Algorithm 1, lines 3-7).

    Departure from the text: F is clamped. Without a lower bound an idle system
    drives F below zero (every job is demoted at its first step); without an upper
    bound a saturated one keeps every job on serverless. The printed variant passes
    infinite bounds. The text's last-change time is written and never read, so it
    is left out.

    Parameters
    ----------
    threshold_s : float
        F, seconds.
    pressure : float
        p, may be infinite.
    gain_up, rate_up_s, gain_down, rate_down_s : float
        G_up, R_up, G_dn, R_dn.
    lowest_s, highest_s : float
        Bounds of F.

    Returns
    -------
    float
        The new F, seconds.
    """
    if pressure > 1.0:
        change = min(rate_up_s, gain_up * (pressure - 1.0))
    else:
        change = -min(rate_down_s, gain_down * (1.0 - pressure))
    return min(highest_s, max(lowest_s, threshold_s + change))
