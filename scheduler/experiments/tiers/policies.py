"""The policies by name: three variants of Allpass and the baselines it is set against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from scheduler.experiments.tiers.choices import Choice, Demotion, Order, Scaling
from scheduler.experiments.tiers.state import UNLIMITED
from scheduler.tiers.rules import TierRules, Variant

#: Work since the last multiple of this is lost when a node fails.
SAFE_EVERY_S = 600.0


def choice(
    *,
    rules: TierRules,
    demotion: Demotion,
    scaling: Scaling,
    cap: int | None,
    order: Order = Order.DEADLINE,
    preemptive: bool = False,
    adaptive: bool = False,
    rehomes: bool = False,
    direct: bool = False,
    holds: bool = False,
    most_pause_s: float = math.inf,
    share: float = 0.0,
    reserved_offers: int = 0,
    long_s: float = math.inf,
) -> Choice:
    """The flat record the loop reads, from the operator's rules."""
    lowest, highest = rules.threshold_bounds
    return Choice(
        demotion=int(demotion),
        scaling=int(scaling),
        order=int(order),
        preemptive=preemptive,
        adaptive=adaptive,
        printed_demand=rules.variant is Variant.PRINTED,
        rehomes=rehomes,
        direct=direct,
        holds=holds,
        most_pause_s=most_pause_s,
        share=share,
        reserved_offers=reserved_offers,
        long_s=float(long_s),
        cap=UNLIMITED if cap is None else min(cap, UNLIMITED),
        tick_s=rules.tick_s,
        windows=rules.windows,
        gain_up=rules.gain_up,
        rate_up_s=rules.rate_up_s,
        gain_down=rules.gain_down,
        rate_down_s=rules.rate_down_s,
        threshold_s=rules.threshold_s,
        threshold_min_s=lowest,
        threshold_max_s=highest,
        probe_s=rules.probe_s,
        checkpoint_s=rules.checkpoint_s,
        restore_s=rules.restore_s,
        delay_price=rules.delay_usd_per_h,
        rehome_delay_price=rules.rehome_delay_usd_per_h,
        saved_share=rules.saved_share,
        serverless_price=rules.serverless_usd_per_h,
        conventional_price=rules.conventional_usd_per_h,
        serverless_boot_s=rules.serverless_boot_s,
        marketplace_boot_s=rules.marketplace_boot_s,
        conventional_boot_s=rules.conventional_boot_s,
        safe_every_s=SAFE_EVERY_S,
    )


def printed(rules: TierRules, cap: int | None) -> Choice:
    return choice(
        rules=replace(rules, variant=Variant.PRINTED),
        demotion=Demotion.THRESHOLD,
        scaling=Scaling.PRINTED,
        adaptive=True,
        cap=cap,
    )


def corrected(rules: TierRules, cap: int | None) -> Choice:
    return choice(
        rules=replace(rules, variant=Variant.CORRECTED),
        demotion=Demotion.THRESHOLD,
        scaling=Scaling.CORRECTED,
        adaptive=True,
        cap=cap,
    )


def improved(rules: TierRules, cap: int | None) -> Choice:
    return choice(
        # The auction has measured the work: no probe has to.
        rules=replace(rules, variant=Variant.IMPROVED, probe_s=0.0),
        demotion=Demotion.BREAK_EVEN,
        scaling=Scaling.BOOKED,
        order=Order.DEADLINE_OR_SHORTEST,
        adaptive=True,
        rehomes=True,
        direct=True,
        holds=True,
        # What a job pauses and waits that Algorithm 1 moves: up to a tick, a boot and one move.
        most_pause_s=rules.tick_s + rules.marketplace_boot_s + rules.checkpoint_s + rules.restore_s,
        share=rules.surplus_share,
        cap=cap,
    )


def improved_reserving(rules: TierRules, cap: int | None) -> Choice:
    """Improved with the ten cheapest offers kept for jobs of two hours and more."""
    return improved(rules, cap)._replace(reserved_offers=10, long_s=7200.0)


def serverless_only(rules: TierRules, cap: int | None) -> Choice:
    return choice(
        rules=replace(rules, variant=Variant.CORRECTED),
        demotion=Demotion.NEVER,
        scaling=Scaling.CORRECTED,
        cap=cap,
    )


def fixed(seconds: float) -> Callable[[TierRules, int | None], Choice]:
    """A threshold that never moves, with the corrected serverful scaler."""

    def build(rules: TierRules, cap: int | None) -> Choice:
        return choice(
            rules=replace(
                rules,
                variant=Variant.CORRECTED,
                threshold_s=seconds,
                threshold_min_s=min(seconds, rules.threshold_min_s),
                threshold_max_s=max(seconds, rules.threshold_max_s),
            ),
            demotion=Demotion.THRESHOLD,
            scaling=Scaling.CORRECTED,
            cap=cap,
        )

    return build


def serverful(
    *, scaling: Scaling, order: Order, preemptive: bool
) -> Callable[[TierRules, int | None], Choice]:
    """A scheduler without a serverless tier."""

    def build(rules: TierRules, cap: int | None) -> Choice:
        if scaling is Scaling.STATIC and cap is None:
            raise ValueError("a static pool has a size: give --cap")
        return choice(
            rules=replace(rules, variant=Variant.CORRECTED),
            demotion=Demotion.SERVERFUL_ONLY,
            scaling=scaling,
            order=order,
            preemptive=preemptive,
            cap=cap,
        )

    return build


#: Every policy ``simulate tiers --policy`` knows. ``-static`` holds the whole cap from
#: the first second to the last; without it workers come on demand and idle ones go.
POLICIES: dict[str, Callable[[TierRules, int | None], Choice]] = {
    "improved": improved,
    "improved-tier10": improved_reserving,
    "corrected": corrected,
    "printed": printed,
    "serverless-only": serverless_only,
    "fixed-60": fixed(60.0),
    "fixed-300": fixed(300.0),
    "fixed-600": fixed(600.0),
    "fixed-3600": fixed(3600.0),
    "hpa": serverful(scaling=Scaling.HPA, order=Order.LEAST_ATTAINED, preemptive=False),
    "hpa-one": serverful(scaling=Scaling.HPA_ONE, order=Order.LEAST_ATTAINED, preemptive=False),
}
for _name, _order in (("tiresias", Order.LEAST_ATTAINED), ("sjf", Order.SHORTEST)):
    for _suffix, _preemptive in (("p", True), ("np", False)):
        POLICIES[f"{_name}-{_suffix}"] = serverful(
            scaling=Scaling.ON_DEMAND, order=_order, preemptive=_preemptive
        )
        POLICIES[f"{_name}-{_suffix}-static"] = serverful(
            scaling=Scaling.STATIC, order=_order, preemptive=_preemptive
        )
