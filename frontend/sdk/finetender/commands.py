"""What each command of ``finetender`` does with its arguments."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from finetender import local_programs
from finetender.adapter_archives import read_vllm_line
from finetender.client import Client
from finetender.data_sources import open_source
from finetender.errors import FinetenderError, InvalidRequestError, JobFailedError, UsageError
from finetender.imports import import_settings
from finetender.job_files import read_job_file, read_settings_file
from finetender.output import open_client, print_json, read_price, show_moment, tell
from finetender.progress import choose_view, draw_bar, say
from finetender.terms import AdapterSettings, TrainingSettings
from finetender.values import Bid, ExpressAnswer, ExpressQuote, Job, JobEvent, Zone

#: Numbers of lines in a sentence.
_LINES_SHOWN = 10


def _read_settings(chosen: argparse.Namespace) -> tuple[AdapterSettings, TrainingSettings]:
    """Settings of the adapter and of training."""
    found: dict[str, dict[str, Any]] = {"adapter": {}, "training": {}}
    if chosen.epochs is not None:
        found["training"]["epochs"] = chosen.epochs
    if chosen.rank is not None:
        found["adapter"]["rank"] = chosen.rank
    for given in chosen.settings:
        name, is_pair, text = given.partition("=")
        part, _, member = name.partition(".")
        if not is_pair or part not in found or not member:
            raise UsageError(
                f"{given!r} is no setting; write training.NAME=VALUE or adapter.NAME=VALUE."
            )
        try:
            found[part][member] = json.loads(text)
        except ValueError:
            found[part][member] = text
    # The market refuses what is none of its settings, by name.
    return cast(AdapterSettings, found["adapter"]), cast(TrainingSettings, found["training"])


def show_quote(chosen: argparse.Namespace) -> None:
    adapter, training = _read_settings(chosen)
    with open_client(chosen) as client:
        quote = client.get_quote(
            chosen.data,
            deadline=chosen.by,
            zone=chosen.zone,
            model=chosen.model,
            validation=chosen.validation,
            adapter=adapter,
            training=training,
            warm_start=chosen.warm_start,
        )
    if chosen.json:
        print_json(quote.raw)
        return
    say(f"Data {quote.dataset_id}, zone {quote.zone}")
    if quote.model is not None:
        say(f"With a warm start; ${quote.cold_price} without. Bid with --model {quote.model}")
    elif chosen.warm_start:
        say("No warm start was found.")
    if quote.posted_price is None:
        reason = quote.reason or ""
        say(f"No price wins by {show_moment(quote.deadline)}: {reason}")
    else:
        until, done = show_moment(quote.deadline), show_moment(quote.finish_at)
        say(f"${quote.posted_price:f} by {until}, done about {done}")
    for point in quote.curve:
        say(f"  from {show_moment(point.deadline)}: ${point.price:f}")


def place_bid(chosen: argparse.Namespace) -> None:
    adapter, training = _read_settings(chosen)
    with open_client(chosen) as client:
        bid = client.place_bid(
            chosen.data,
            price=read_price(chosen.price),
            tells_price=chosen.tell_price,
            deadline=chosen.by,
            name=chosen.name,
            zone=chosen.zone,
            model=chosen.model,
            validation=chosen.validation,
            adapter=adapter,
            training=training,
        )
        _tell_won(chosen, bid)
        if chosen.watch and bid.job_id is not None:
            _follow(client, bid.job_id, as_json=chosen.json)


def _tell_won(chosen: argparse.Namespace, bid: Bid) -> None:
    words = f"Won for ${bid.payment:f}. Job {bid.job_id}, promised by {show_moment(bid.deadline)}."
    tell(chosen, words, bid.raw)


def run_job(chosen: argparse.Namespace) -> None:
    """Bid for what a file says, follow the job, and fetch its adapter where the file wants it."""
    work = read_job_file(Path(chosen.file))
    if work.sweep is not None:
        raise UsageError(f"{chosen.file} asks for several jobs: finetender sweep {chosen.file}")
    with open_client(chosen) as client:
        bid = client.place_bid(work.data, **work.terms)
        _tell_won(chosen, bid)
        if bid.job_id is None:
            return
        _follow(client, bid.job_id, as_json=chosen.json)
        if work.output is not None:
            found = client.download_adapter(bid.job_id, work.output)
            line = read_vllm_line(found, bid.job_id)
            tell(chosen, str(found), {"path": str(found), "vllm": line})


def import_job(chosen: argparse.Namespace) -> None:
    """Print a trainer's configuration as a job's file, and what has no place in one."""
    config = read_settings_file(Path(chosen.file))
    found = import_settings(config, zones=_list_base_models(chosen))
    # JSON is YAML, too.
    print_json({"job": found.job, "left_out": found.left_out} if chosen.json else found.job)
    if not chosen.json:
        for sentence in (*found.left_out, "A price and a deadline are yours to say."):
            say(sentence, file=sys.stderr)


def _list_base_models(chosen: argparse.Namespace) -> Mapping[str, str] | None:
    """Zones by their base models; ``None`` where the market cannot be asked."""
    try:
        with open_client(chosen) as client:
            return {zone.base_model: zone.name for zone in client.list_zones()}
    except FinetenderError:
        return None


def list_jobs(chosen: argparse.Namespace) -> None:
    with open_client(chosen) as client:
        jobs = client.list_jobs(status=chosen.status, limit=chosen.limit)
    if chosen.json:
        print_json([job.raw for job in jobs])
        return
    for job in jobs:
        say(_describe(job))
    if not jobs:
        say("No jobs yet.", file=sys.stderr)


def _describe(job: Job) -> str:
    share = job.step / job.total_steps if job.total_steps else 0.0
    loss = "" if job.train_loss is None else f"  loss {job.train_loss:.3f}"
    bar = draw_bar(share, cells=10)
    return f"{job.id}  {job.status:<10} {bar} {share:4.0%}{loss}  {job.name}"


def watch_job(chosen: argparse.Namespace) -> None:
    with open_client(chosen) as client:
        _follow(client, chosen.job, as_json=chosen.json)


def _follow(client: Client, job_id: str, *, as_json: bool) -> None:
    show = _print_line if as_json else choose_view()
    for event in client.watch(job_id):
        show(event)
    job = client.get_job(job_id)
    if job.status != "succeeded":
        raise JobFailedError(f"{job.id} {job.status}: {job.failure_reason or 'no reason'}")
    if not as_json:
        say(f"{job.id} succeeded. 'finetender download {job.id}' fetches the adapter.")


def _print_line(event: JobEvent) -> None:
    say(json.dumps(event.raw), flush=True)


def cancel_job(chosen: argparse.Namespace) -> None:
    with open_client(chosen) as client:
        job = client.cancel_job(chosen.job)
    tell(chosen, f"{job.id} is {job.status}.", job.raw)


def pause_job(chosen: argparse.Namespace) -> None:
    with open_client(chosen) as client:
        job = client.pause_job(chosen.job)
    tell(chosen, f"{job.id} is {job.status}. 'finetender resume {job.id}' goes on.", job.raw)


def resume_job(chosen: argparse.Namespace) -> None:
    with open_client(chosen) as client:
        bid = client.resume_job(chosen.job, price=chosen.price, deadline=chosen.deadline)
    tell(chosen, f"{bid.job_id} goes on with {chosen.job}, for ${bid.payment}.", bid.raw)


def chat(chosen: argparse.Namespace) -> None:
    settings = {"max_tokens": chosen.max_tokens, "temperature": chosen.temperature}
    turns: list[dict[str, str]] = []
    with open_client(chosen) as client:
        while True:
            asked = chosen.message or _read_turn()
            if not asked:
                return
            turns.append({"role": "user", "content": asked})
            said = ""
            for words in client.chat(chosen.model, turns, **settings):
                said += words
                if not chosen.json:
                    say(words, also="\n\t", end="", flush=True)
            tell(chosen, "", {"model": chosen.model, "content": said})
            if chosen.message:
                return
            turns.append({"role": "assistant", "content": said})


def _read_turn() -> str:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def ask_express(chosen: argparse.Namespace) -> None:
    adapter, training = _read_settings(chosen)
    with open_client(chosen) as client:
        if chosen.within is None:
            _show_express_prices(client, chosen)
            return
        answer = client.ask_express(
            chosen.data,
            within_s=chosen.within,
            zone=chosen.zone,
            adapter=adapter,
            training=training,
        )
        if chosen.json:
            print_json(answer.raw)
        elif answer.job_id is None:
            raise JobFailedError(describe_refusal(answer, chosen.within))
        else:
            within = f"{answer.certified_slo_s:g} s"
            say(f"Promised within {within} for ${answer.price:f}: {answer.job_id}")
            say(f"Certificate: entry {answer.raw['position']} of the log of {answer.raw['zone']},")
            say(f"  {answer.raw['decision_hash']}")
        if chosen.watch and answer.job_id is not None:
            _follow(client, answer.job_id, as_json=chosen.json)
            found = client.await_lookup(answer.id)
            if chosen.json:
                print_json(found.raw)
                return
            say(describe_lookup(found))
            say(f"Receipt: {client.access.url}/bids/{answer.raw['bid_id']}")


def _show_express_prices(client: Client, chosen: argparse.Namespace) -> None:
    adapter, training = _read_settings(chosen)
    quote = client.get_express_quote(
        chosen.data, zone=chosen.zone, adapter=adapter, training=training
    )
    if chosen.json:
        print_json(quote.raw)
        return
    say(f"Data {quote.dataset_id}, zone {quote.zone}")
    for line in describe_express_prices(quote):
        say(f"  {line}")


def describe_express_prices(quote: ExpressQuote) -> list[str]:
    """What each time would cost, or why none is sold."""
    if not quote.prices:
        needed, longest = quote.least_slo_s, quote.raw["longest_slo_s"]
        told = f"the job takes up to {needed:.0f} s, and the lane promises {longest:.0f} s at most"
        why = told if needed > longest else "the lane's seats are taken"
        return [f"No price: {why}. Place a bid instead."]
    return [f"within {slo_s:.1f} s: ${price:f}" for slo_s, price in quote.prices]


def describe_lookup(answer: ExpressAnswer) -> str:
    """What the search for a known prompt found before the first step."""
    found = answer.raw["lookup"]
    if found is None:
        return "No known prompt was compared: the bank had none for this job, or no time was left."
    gained = f"loss {found['own_loss']:.3f} to {found['loss']:.3f}"
    return f"{found['candidates']} prompts compared in {found['seconds']:.2f} s: {gained}"


def describe_refusal(answer: ExpressAnswer, within_s: float) -> str:
    """What the lane would promise, or why it promises nothing."""
    words = f"The lane does not promise {within_s:g} s"
    if answer.certified_slo_s is not None:
        return f"{words}, but {answer.certified_slo_s:g} s for ${answer.price:f}: ask for that."
    if answer.reason == "too short":
        return f"{words}: the job takes up to {answer.raw['least_slo_s']:.1f} s."
    return f"{words}: its seats are taken."


def upload_data(chosen: argparse.Namespace) -> None:
    """Store a file; a large one goes in parts, and goes on where it was broken off."""
    with open_client(chosen) as client:
        found = client.upload(
            chosen.file,
            zone=chosen.zone,
            name=chosen.name,
            faulty_lines=chosen.faulty_lines,
            long_rows=chosen.long_rows,
        )
    tell(chosen, f"{found.id}  {found.rows:,} rows, {found.tokens:,} tokens", found.raw)


def join_nodes(chosen: argparse.Namespace) -> int:
    return local_programs.join_node(chosen.rest)


def _find_zone(chosen: argparse.Namespace) -> Zone:
    """The zone that is named, itself or by its base model; the only one where none is."""
    with open_client(chosen) as client:
        zones = client.list_zones()
    found = [zone for zone in zones if chosen.zone in (None, zone.name, zone.base_model)]
    if len(found) != 1:
        names = ", ".join(zone.name for zone in zones) or "none"
        raise UsageError(f"Choose one zone by --zone; there are: {names}.")
    return found[0]


def check_rows(chosen: argparse.Namespace) -> int:
    """Read rows on this machine as the market would; none of them is sent."""
    base, longest = chosen.base, chosen.longest
    if base is None:
        zone = _find_zone(chosen)
        base, longest = zone.base_model, longest or zone.raw["max_sequence_length"]
    with open_source(chosen.data) as (path, _):
        is_usable, found = local_programs.check_rows(path, base=base, longest=longest)
    if chosen.json:
        print_json(found)
    else:
        for fault in found.get("errors", ()):
            say(f"line {fault['line']}: {fault['message']}")
        if found["fatal"]:
            say(found["fatal"])
        else:
            say(
                f"{found['rows']:,} rows, {found['tokens']:,} tokens, the longest row has "
                f"{found['longest_row_tokens']:,}."
            )
            _tell_long_rows(found, longest)
    return 0 if is_usable else InvalidRequestError.exit_code


def _tell_long_rows(found: Mapping[str, Any], longest: int | None) -> None:
    if not found["long_rows"]:
        return
    lines = ", ".join(map(str, found["long_lines"][:_LINES_SHOWN]))
    more = ", …" if found["long_rows"] > _LINES_SHOWN else ""
    say(
        f"Longer than the {longest} tokens that training reads: line {lines}{more}. Upload with "
        "--long-rows cut or leave_out, or shorten them."
    )
