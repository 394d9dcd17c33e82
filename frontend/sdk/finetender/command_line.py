"""The commands of ``finetender`` and their arguments."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from finetender.clients import Client
from finetender.errors import JobFailedError, NotAuthorizedError, UsageError
from finetender.local_programs import join_node, verify_transcript
from finetender.progress import choose_view, draw_bar, keep_printable
from finetender.settings import Access, find_access, store_access
from finetender.values import ExpressAnswer, Job

_KEY_HELP = "an API key, made under API keys in the market's settings"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="finetender", description="Bid for LoRA fine-tuning, follow jobs, use what they made."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    login = _add(commands, "login", _login, "remember a market and a key of it")
    login.add_argument("--url", help="address of the market")
    login.add_argument("--key", help=f"{_KEY_HELP} (default: asked for, or read from a pipe)")

    quote = _add(commands, "quote", _quote, "what a job would cost, by deadline")
    _add_work(quote)

    bid = _add(commands, "bid", _bid, "bid for a job")
    _add_work(bid)
    bid.add_argument(
        "--price",
        required=True,
        help="the most it is worth to you, in dollars; what you pay does not depend on it",
    )
    bid.add_argument("--name", help="the job's name")
    bid.add_argument("--watch", action="store_true", help="follow the job until it ends")

    jobs = _add(commands, "jobs", _jobs, "your newest jobs")
    jobs.add_argument("--status", help="only jobs of this status")
    jobs.add_argument("--limit", type=int, default=20)
    jobs.add_argument("--json", action="store_true", help="as JSON")

    watch = _add(commands, "watch", _watch, "follow a job until it ends")
    watch.add_argument("job", metavar="JOB")

    cancel = _add(commands, "cancel", _cancel, "end a job; work not done is refunded, less its fee")
    cancel.add_argument("job", metavar="JOB")

    download = _add(commands, "download", _download, "fetch a finished adapter")
    download.add_argument("job", metavar="JOB")
    download.add_argument("-o", "--output", help="file to write (default: JOB-adapter.zip)")
    download.add_argument("--checkpoint", metavar="ID", help="this stored checkpoint instead")

    export = _add(commands, "export", _export, "fetch merged weights or a GGUF file")
    export.add_argument("job", metavar="JOB")
    export.add_argument("form", choices=["merged", "gguf-f16", "gguf-q8_0"])
    export.add_argument("-o", "--output", help="file to write (default: named by the market)")

    push = _add(commands, "push", _push, "push a finished adapter to a model hub")
    push.add_argument("job", metavar="JOB")
    push.add_argument("repository", metavar="NAME/MODEL")
    push.add_argument("--public", action="store_true", help="a new repository is public")
    push.add_argument("--export", metavar="ID", help="this export instead of the adapter")

    chat = _add(commands, "chat", _chat, "ask a model, or talk to it line by line")
    chat.add_argument("model", metavar="MODEL", help="a zone's name, ft:…, or the id of a job")
    chat.add_argument("message", metavar="MESSAGE", nargs="?")
    chat.add_argument("--max-tokens", type=int, default=256)
    chat.add_argument("--temperature", type=float, default=0.7)

    express = _add(commands, "express", _express, "prompt tuning within seconds: prices, or buy")
    _add_settings(express)
    express.add_argument("--within", type=float, metavar="S", help="buy: done in so many seconds")
    express.add_argument(
        "--watch", action="store_true", help="follow the job, then say what the lookup gained"
    )

    nodes = _add_group(commands, "nodes", "machines that you offer")
    join = nodes.add_parser("join", help="measure this machine and list it", add_help=False)
    join.set_defaults(command=_join)

    transcript = _add_group(commands, "transcript", "the public log of the auction")
    verify = _add(transcript, "verify", _verify, "replay every decision on this machine")
    verify.add_argument("log", metavar="ZONE|FILE", help="a zone, or a log that was fetched")
    fetch = _add(transcript, "fetch", _fetch, "store a zone's log")
    fetch.add_argument("zone", metavar="ZONE")
    fetch.add_argument("-o", "--output", help="file to write (default: ZONE.jsonl)")
    return parser


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those of ``nodes join``, which the node's own program reads."""
    if arguments[:2] == ["nodes", "join"]:
        return arguments[:2], arguments[2:]
    return arguments, []


def _add(commands: Any, name: str, command: Any, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=command)
    return parser


def _add_group(commands: Any, name: str, text: str) -> Any:
    return commands.add_parser(name, help=text).add_subparsers(metavar="COMMAND", required=True)


def _add_work(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    parser.add_argument("--by", required=True, help="deadline: 90m, 6h, 2d or a moment")
    parser.add_argument("--model", default="", help="begin with this adapter: ft:JOB")
    parser.add_argument("--validation", help="a file or data set whose rows are held out")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="a file of rows, or the id of a data set")
    parser.add_argument("--zone", help="zone or base model (default: the only one)")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rank", type=int, help="rank of the adapter")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting, such as training.learning_rate=0.001",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _read_settings(chosen: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
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
    return found["adapter"], found["training"]


def _login(chosen: argparse.Namespace) -> None:
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
    print(f"Signed in to {access.url}. The key is in {path}.")


def _quote(chosen: argparse.Namespace) -> None:
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
        )
    if chosen.json:
        _print_json(quote.raw)
        return
    print(f"Data {quote.dataset_id}, zone {quote.zone}")
    if quote.posted_price is None:
        reason = keep_printable(quote.reason or "")
        print(f"No price wins by {_at(quote.deadline)}: {reason}")
    else:
        print(
            f"${quote.posted_price:f} by {_at(quote.deadline)}, done about {_at(quote.finish_at)}"
        )
    for point in quote.curve:
        print(f"  from {_at(point.deadline)}: ${point.price:f}")


def _bid(chosen: argparse.Namespace) -> None:
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
        if chosen.json:
            _print_json(bid.raw)
        else:
            print(f"Won for ${bid.payment:f}. Job {bid.job_id}, promised by {_at(bid.deadline)}.")
        if chosen.watch and bid.job_id is not None:
            _follow(client, bid.job_id)


def _read_price(text: str) -> Decimal:
    try:
        price = Decimal(text.removeprefix("$"))
    except ArithmeticError:
        raise UsageError(f"{text!r} is no price; give dollars such as 4.50.") from None
    return price


def _jobs(chosen: argparse.Namespace) -> None:
    with Client() as client:
        jobs = client.list_jobs(status=chosen.status, limit=chosen.limit)
    if chosen.json:
        _print_json([job.raw for job in jobs])
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


def _watch(chosen: argparse.Namespace) -> None:
    with Client() as client:
        _follow(client, chosen.job)


def _follow(client: Client, job_id: str) -> None:
    show = choose_view()
    for event in client.watch(job_id):
        show(event)
    job = client.get_job(job_id)
    if job.status != "succeeded":
        raise JobFailedError(f"{job.id} {job.status}: {job.failure_reason or 'no reason'}")
    print(f"{job.id} succeeded. 'finetender download {job.id}' fetches the adapter.")


def _cancel(chosen: argparse.Namespace) -> None:
    with Client() as client:
        job = client.cancel_job(chosen.job)
    print(f"{job.id} is {job.status}.")


def _download(chosen: argparse.Namespace) -> None:
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
    print(found)


def _export(chosen: argparse.Namespace) -> None:
    with Client() as client:
        export = client.export_adapter(chosen.job, chosen.form)
        path = Path(chosen.output or Path(export["filename"]).name)
        print(client.download_export(chosen.job, export["id"], path))


def _push(chosen: argparse.Namespace) -> None:
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
    print(keep_printable(push["url"]))


def _chat(chosen: argparse.Namespace) -> None:
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
                print(keep_printable(words, also="\n\t"), end="", flush=True)
            print()
            if chosen.message:
                return
            turns.append({"role": "assistant", "content": said})


def _read_turn() -> str:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def _express(chosen: argparse.Namespace) -> None:
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
            _print_json(answer.raw)
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
            _follow(client, answer.job_id)
            print(describe_lookup(client.await_lookup(answer.id)))
            print(f"Receipt: {client.access.url}/bids/{answer.raw['bid_id']}")


def _show_express_prices(client: Client, chosen: argparse.Namespace) -> None:
    adapter, training = _read_settings(chosen)
    quote = client.get_express_quote(
        chosen.data, zone=chosen.zone, adapter=adapter, training=training
    )
    if chosen.json:
        _print_json(quote.raw)
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


def _join(chosen: argparse.Namespace) -> int:
    return join_node(chosen.rest)


def _verify(chosen: argparse.Namespace) -> int:
    path = Path(chosen.log)
    if not path.exists():
        with Client() as client:
            path = client.download_transcript(chosen.log, f"{chosen.log}.jsonl")
        print(f"Stored {path}.", file=sys.stderr)
    return verify_transcript(path)


def _fetch(chosen: argparse.Namespace) -> None:
    with Client() as client:
        print(client.download_transcript(chosen.zone, chosen.output or f"{chosen.zone}.jsonl"))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _at(moment: Any) -> str:
    """A moment as this machine's clock would show it."""
    return "?" if moment is None else moment.astimezone().strftime("%d %b %H:%M:%S")
