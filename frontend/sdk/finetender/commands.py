"""What each command of ``finetender`` does with its arguments."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from finetender import local_programs
from finetender.client import Client
from finetender.errors import InvalidRequestError, JobFailedError, NotAuthorizedError, UsageError
from finetender.imports import import_settings
from finetender.job_files import read_job_file, read_settings_file
from finetender.progress import choose_view, draw_bar, keep_printable
from finetender.settings import Access, find_access, store_access
from finetender.terms import AdapterSettings, TrainingSettings
from finetender.values import Bid, ExpressAnswer, Job, JobEvent


def log_in(chosen: argparse.Namespace) -> None:
    url = chosen.url or input("Address of the market: ")
    key = chosen.key or (
        getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    )
    access = find_access(url.strip(), key.strip())
    with Client(access.url, access.api_key) as client:
        try:
            client.list_jobs(limit=1)
        except NotAuthorizedError as error:
            # A key may have other scopes than this one.
            if error.code != "missing_scope":
                raise
    path = store_access(Access(access.url, access.api_key))
    told = f"Signed in to {access.url}. The key is in {path}."
    _tell(chosen, told, {"url": access.url, "stored_at": str(path)})


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
    with Client() as client:
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
    print(f"Data {quote.dataset_id}, zone {quote.zone}")
    if quote.model is not None:
        print(f"With a warm start; ${quote.cold_price} without. Bid with --model {quote.model}")
    elif chosen.warm_start:
        print("No warm start was found.")
    if quote.posted_price is None:
        reason = keep_printable(quote.reason or "")
        print(f"No price wins by {_at(quote.deadline)}: {reason}")
    else:
        print(
            f"${quote.posted_price:f} by {_at(quote.deadline)}, done about {_at(quote.finish_at)}"
        )
    for point in quote.curve:
        print(f"  from {_at(point.deadline)}: ${point.price:f}")


def place_bid(chosen: argparse.Namespace) -> None:
    adapter, training = _read_settings(chosen)
    with Client() as client:
        bid = client.place_bid(
            chosen.data,
            price=_read_price(chosen.price),
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
    words = f"Won for ${bid.payment:f}. Job {bid.job_id}, promised by {_at(bid.deadline)}."
    _tell(chosen, words, bid.raw)


def run_job(chosen: argparse.Namespace) -> None:
    """Bid for what a file says, follow the job, and fetch its adapter where the file wants it."""
    work = read_job_file(Path(chosen.file))
    with Client() as client:
        bid = client.place_bid(work.data, **work.terms)
        _tell_won(chosen, bid)
        if bid.job_id is None:
            return
        _follow(client, bid.job_id, as_json=chosen.json)
        if work.output is not None:
            found = client.download_adapter(bid.job_id, work.output)
            _tell(chosen, str(found), {"path": str(found)})


def import_job(chosen: argparse.Namespace) -> None:
    """Print a trainer's configuration as a job's file, and what has no place in one."""
    found = import_settings(read_settings_file(Path(chosen.file)))
    # JSON is YAML, too.
    print_json({"job": found.job, "left_out": found.left_out} if chosen.json else found.job)
    if not chosen.json:
        for sentence in (*found.left_out, "A price and a deadline are yours to say."):
            print(sentence, file=sys.stderr)


def _read_price(text: str) -> Decimal:
    try:
        price = Decimal(text.removeprefix("$"))
    except ArithmeticError:
        raise UsageError(f"{text!r} is no price; give dollars such as 4.50.") from None
    return price


def list_jobs(chosen: argparse.Namespace) -> None:
    with Client() as client:
        jobs = client.list_jobs(status=chosen.status, limit=chosen.limit)
    if chosen.json:
        print_json([job.raw for job in jobs])
        return
    for job in jobs:
        print(_describe(job))
    if not jobs:
        print("No jobs yet.", file=sys.stderr)


def _describe(job: Job) -> str:
    share = job.step / job.total_steps if job.total_steps else 0.0
    loss = "" if job.train_loss is None else f"  loss {job.train_loss:.3f}"
    bar = draw_bar(share, cells=10)
    return f"{job.id}  {job.status:<10} {bar} {share:4.0%}{loss}  {keep_printable(job.name)}"


def watch_job(chosen: argparse.Namespace) -> None:
    with Client() as client:
        _follow(client, chosen.job, as_json=chosen.json)


def _follow(client: Client, job_id: str, *, as_json: bool) -> None:
    show = _print_line if as_json else choose_view()
    for event in client.watch(job_id):
        show(event)
    job = client.get_job(job_id)
    if job.status != "succeeded":
        raise JobFailedError(f"{job.id} {job.status}: {job.failure_reason or 'no reason'}")
    if not as_json:
        print(f"{job.id} succeeded. 'finetender download {job.id}' fetches the adapter.")


def _print_line(event: JobEvent) -> None:
    print(json.dumps(event.raw), flush=True)


def cancel_job(chosen: argparse.Namespace) -> None:
    with Client() as client:
        job = client.cancel_job(chosen.job)
    _tell(chosen, f"{job.id} is {job.status}.", job.raw)


def pause_job(chosen: argparse.Namespace) -> None:
    with Client() as client:
        job = client.pause_job(chosen.job)
    _tell(chosen, f"{job.id} is {job.status}. 'finetender resume {job.id}' goes on.", job.raw)


def resume_job(chosen: argparse.Namespace) -> None:
    with Client() as client:
        bid = client.resume_job(chosen.job, price=chosen.price, deadline=chosen.deadline)
    _tell(chosen, f"{bid.job_id} goes on with {chosen.job}, for ${bid.payment}.", bid.raw)


def download_files(chosen: argparse.Namespace) -> None:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            bar = draw_bar(done / max(total, 1))
            print(f"\r\x1b[K{bar} {done / 1e6:.1f} MB", end="", file=sys.stderr, flush=True)

    with Client() as client:
        if chosen.checkpoint:
            path = Path(chosen.output or f"{chosen.job}-{chosen.checkpoint}.safetensors")
            found = client.download_checkpoint(chosen.job, chosen.checkpoint, path, on_bytes=show)
        else:
            path = Path(chosen.output or f"{chosen.job}-adapter.zip")
            found = client.download_adapter(chosen.job, path, on_bytes=show)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    _tell(chosen, str(found), {"path": str(found)})


def export_adapter(chosen: argparse.Namespace) -> None:
    with Client() as client:
        export = client.export_adapter(chosen.job, chosen.form, chosen.checkpoint)
        path = Path(chosen.output or Path(export["filename"]).name)
        found = client.download_export(chosen.job, export["id"], path)
    _tell(chosen, str(found), {"path": str(found), "export": export})


def push_adapter(chosen: argparse.Namespace) -> None:
    """The token is asked for: an argument would stand in the shell's history."""
    is_terminal = sys.stdin.isatty()
    token = getpass.getpass("Token of the hub: ") if is_terminal else sys.stdin.readline().strip()
    with Client() as client:
        push = client.push_adapter(
            chosen.job,
            chosen.repository,
            token=token,
            private=not chosen.public,
            export_id=chosen.export,
        )
    _tell(chosen, keep_printable(push["url"]), push)


def chat(chosen: argparse.Namespace) -> None:
    settings = {"max_tokens": chosen.max_tokens, "temperature": chosen.temperature}
    turns: list[dict[str, str]] = []
    with Client() as client:
        while True:
            asked = chosen.message or _read_turn()
            if not asked:
                return
            turns.append({"role": "user", "content": asked})
            said = ""
            for words in client.chat(chosen.model, turns, **settings):
                said += words
                if not chosen.json:
                    print(keep_printable(words, also="\n\t"), end="", flush=True)
            _tell(chosen, "", {"model": chosen.model, "content": said})
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
    with Client() as client:
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
            print(f"Promised within {within} for ${answer.price:f}: {answer.job_id}")
            print(
                f"Certificate: entry {answer.raw['position']} of the log of {answer.raw['zone']},"
            )
            print(f"  {answer.raw['decision_hash']}")
        if chosen.watch and answer.job_id is not None:
            _follow(client, answer.job_id, as_json=chosen.json)
            found = client.await_lookup(answer.id)
            if chosen.json:
                print_json(found.raw)
                return
            print(describe_lookup(found))
            print(f"Receipt: {client.access.url}/bids/{answer.raw['bid_id']}")


def _show_express_prices(client: Client, chosen: argparse.Namespace) -> None:
    adapter, training = _read_settings(chosen)
    quote = client.get_express_quote(
        chosen.data, zone=chosen.zone, adapter=adapter, training=training
    )
    if chosen.json:
        print_json(quote.raw)
        return
    print(f"Data {quote.dataset_id}, zone {quote.zone}")
    for slo_s, price in quote.prices:
        print(f"  within {slo_s:.1f} s: ${price:f}")


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


def join_nodes(chosen: argparse.Namespace) -> int:
    return local_programs.join_node(chosen.rest)


def check_rows(chosen: argparse.Namespace) -> int:
    """Read rows on this machine as the market would; nothing is sent."""
    path = Path(chosen.file)
    is_usable, found = local_programs.check_rows(path, base=chosen.base, longest=chosen.longest)
    if chosen.json:
        print_json(found)
    else:
        for fault in found.get("errors", ()):
            print(f"line {fault['line']}: {keep_printable(fault['message'])}")
        if found["fatal"]:
            print(keep_printable(found["fatal"]))
        else:
            print(
                f"{found['rows']:,} rows, {found['tokens']:,} tokens, the longest row has "
                f"{found['longest_row_tokens']:,}; {found['long_rows']:,} rows are cut."
            )
    return 0 if is_usable else InvalidRequestError.exit_code


def verify_log(chosen: argparse.Namespace) -> int:
    path = Path(chosen.log)
    if not path.exists():
        with Client() as client:
            path = client.download_transcript(chosen.log, f"{chosen.log}.jsonl")
        print(f"Stored {path}.", file=sys.stderr)
    return local_programs.verify_transcript(path)


def fetch_log(chosen: argparse.Namespace) -> None:
    with Client() as client:
        found = client.download_transcript(chosen.zone, chosen.output or f"{chosen.zone}.jsonl")
    _tell(chosen, str(found), {"path": str(found)})


def _tell(chosen: argparse.Namespace, text: str, value: Any) -> None:
    """Print what came of a command: a sentence, or with ``--json`` the value."""
    if chosen.json:
        print_json(value)
    else:
        print(text)


def print_json(value: Any) -> None:
    """Print a value as ``--json`` does."""
    print(json.dumps(value, indent=2))


def _at(moment: Any) -> str:
    """A moment as this machine's clock would show it."""
    return "?" if moment is None else moment.astimezone().strftime("%d %b %H:%M:%S")
