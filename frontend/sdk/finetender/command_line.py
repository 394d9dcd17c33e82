"""The arguments of ``finetender`` and its commands."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from finetender import (
    access_commands,
    actions,
    commands,
    log_commands,
    resources,
    result_commands,
    sweep_command,
)
from finetender.errors import UsageError
from finetender.exchange import VERSION

_KEY_HELP = "an API key, made under API keys in the market's settings"


class Parser(argparse.ArgumentParser):
    """Refuses wrong arguments as all else is refused, so that ``--json`` prints it as JSON."""

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split())
        raise UsageError(f"{message}. {usage}")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="finetender", description="Bid for LoRA fine-tuning, follow jobs, use what they made."
    )
    parser.add_argument("--version", action="version", version=f"finetender {VERSION}")
    _add_common(parser)
    parser.set_defaults(json=False, profile=None, ca=None)
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_access(parsers)
    _add_bidding(parsers)
    _add_jobs(parsers)
    _add_results(parsers)
    _add_express(parsers)
    _add_logs(parsers)
    _add_resources(parsers)
    completion = _add(
        parsers, "completion", access_commands.write_completion, "what a shell completes lines by"
    )
    completion.add_argument("shell", choices=access_commands.SHELLS)
    completion.set_defaults(parser=parser)
    return parser


def _add_access(parsers: Any) -> None:
    login = _add(parsers, "login", access_commands.log_in, "remember a market and a key of it")
    login.add_argument("--url", help="address of the market")
    login.add_argument("--key", help=f"{_KEY_HELP} (default: asked for, or read from a pipe)")
    profiles = _add_group(
        parsers, "profiles", access_commands.list_profiles, "markets that you signed in to"
    )
    _add(profiles, "list", access_commands.list_profiles, "their names and addresses")
    use = _add(profiles, "use", access_commands.use_profile, "the one that commands use")
    use.add_argument("name", metavar="NAME")
    remove = _add(profiles, "remove", access_commands.remove_profile, "forget one and its key")
    remove.add_argument("name", metavar="NAME")


def _add_bidding(parsers: Any) -> None:
    check = _add(parsers, "check", commands.check_rows, "read rows here as the market would")
    check.add_argument("data", metavar="DATA", help="a file of rows, or where it is")
    check.add_argument("--zone", help="what to be checked for (default: the only one)")
    check.add_argument(
        "--base", help="its base model, a hub id or a folder; then no market is asked"
    )
    check.add_argument("--longest", type=int, help="most tokens of a row that training reads")

    quote = _add(parsers, "quote", commands.show_quote, "what a job would cost, by deadline")
    _add_work(quote)
    quote.add_argument(
        "--warm-start",
        action="store_true",
        help="look for an adapter to begin with, which is cheaper",
    )

    bid = _add(parsers, "bid", commands.place_bid, "bid for a job")
    _add_work(bid)
    bid.add_argument(
        "--price",
        required=True,
        help="the most it is worth to you, in dollars; what you pay does not depend on it",
    )
    bid.add_argument(
        "--tell-price",
        action="store_true",
        help="send the price along, so that the market decides; who runs it sees it then",
    )
    bid.add_argument("--name", help="the job's name")
    bid.add_argument("--watch", action="store_true", help="follow the job until it ends")

    run = _add(parsers, "run", commands.run_job, "do what a file says: bid, follow, fetch")
    run.add_argument("file", metavar="JOB.YAML", help="data, price, deadline, settings, output")

    sweep = _add(
        parsers, "sweep", sweep_command.sweep, "a job for each combination of some settings"
    )
    sweep.add_argument("file", metavar="JOB.YAML", help="as of 'run'; its price is for each job")
    sweep.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="NAME=VALUE,…",
        help="values to compare, such as training.learning_rate=1e-4,2e-4",
    )
    sweep.add_argument(
        "--all-or-none", action="store_true", help="all jobs win or none; the price is for all"
    )
    sweep.add_argument("--no-wait", action="store_true", help="only place the bids")

    imported = _add(
        parsers, "import", commands.import_job, "another trainer's configuration as a job's file"
    )
    imported.add_argument(
        "file", metavar="CONFIG", help="of TRL, Axolotl, Unsloth or LLaMA-Factory"
    )


def _add_jobs(parsers: Any) -> None:
    jobs = _add(parsers, "jobs", commands.list_jobs, "your newest jobs")
    jobs.add_argument("--status", help="only jobs of this status")
    jobs.add_argument("--limit", type=int, default=20)

    watch = _add(parsers, "watch", commands.watch_job, "follow a job until it ends")
    watch.add_argument("job", metavar="JOB")

    cancel = _add(
        parsers,
        "cancel",
        commands.cancel_job,
        "end a job; 98 % of what is left goes back",
    )
    cancel.add_argument("job", metavar="JOB")

    pause = _add(
        parsers, "pause", commands.pause_job, "end a job for now, with what cancelling gives back"
    )
    pause.add_argument("job", metavar="JOB")

    resume = _add(parsers, "resume", commands.resume_job, "bid for the rest of a paused job")
    resume.add_argument("job", metavar="JOB")
    resume.add_argument("--price", help="the most the rest is worth (default: what is left)")
    resume.add_argument("--deadline", help="a moment, or a time from now such as 6h")
    show = _add(parsers, "show", resources.show_job, "one job: its progress, plan and result")
    show.add_argument("job", metavar="JOB")

    logs = _add(parsers, "logs", log_commands.show_logs, "what happened to a job")
    logs.add_argument("job", metavar="JOB")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    logs.add_argument("--after", type=int, default=0, metavar="SEQ", help="only later events")


def _add_results(parsers: Any) -> None:
    of = result_commands
    download = _add(parsers, "download", of.download_files, "fetch a finished adapter")
    download.add_argument("job", metavar="JOB")
    download.add_argument("-o", "--output", help="file to write (default: JOB-adapter.zip)")
    download.add_argument("--checkpoint", metavar="ID", help="this stored checkpoint instead")

    export = _add(parsers, "export", of.export_adapter, "fetch merged weights or a GGUF file")
    export.add_argument("job", metavar="JOB")
    export.add_argument("form", choices=["merged", "gguf-f16", "gguf-q8_0"])
    export.add_argument("-o", "--output", help="file to write (default: named by the market)")

    export.add_argument("--checkpoint", metavar="ID", help="the adapter as it was at this one")

    push = _add(parsers, "push", of.push_adapter, "push a finished adapter to a model hub")
    push.add_argument("job", metavar="JOB")
    push.add_argument("repository", metavar="NAME/MODEL")
    push.add_argument("--public", action="store_true", help="a new repository is public")
    push.add_argument("--export", metavar="ID", help="this export instead of the adapter")

    chat = _add(parsers, "chat", commands.chat, "ask a model, or talk to it line by line")
    chat.add_argument("model", metavar="MODEL", help="a zone's name, ft:…, or the id of a job")
    chat.add_argument("message", metavar="MESSAGE", nargs="?")
    chat.add_argument("--max-tokens", type=int, default=256)
    chat.add_argument("--temperature", type=float, default=0.7)


def _add_resources(parsers: Any) -> None:
    for name, (text, verbs) in resources.RESOURCES.items():
        first = next(iter(verbs.values()))
        group = _add_group(parsers, name, actions.act, text, action=first)
        for verb, action in verbs.items():
            actions.add_arguments(_add(group, verb, actions.act, action.help), action)
        if name == "data":
            _add_upload(group)
        if name == "nodes":
            join = group.add_parser("join", help="measure this machine and list it", add_help=False)
            join.set_defaults(command=commands.join_nodes)
    api = _add(parsers, "api", resources.ask_operation, "any operation of the market, as JSON")
    api.add_argument("operation", metavar="OPERATION", help="its name in /api/schema")
    api.add_argument("values", metavar="NAME=VALUE", nargs="*", help="of its address and query")
    api.add_argument("--body", metavar="JSON", help="members of the request; - reads them")
    api.add_argument("--file", help="a file that goes along")
    api.add_argument("-o", "--output", help="where to write a file that is the answer")


def _add_upload(group: Any) -> None:
    upload = _add(group, "upload", commands.upload_data, "store a file of rows")
    upload.add_argument("file", metavar="FILE")
    upload.add_argument("--zone", help="whose tokenizer counts the tokens (default: the first)")
    upload.add_argument("--name", help="the data set's name (default: the file's)")
    upload.add_argument("--faulty-lines", choices=["refuse", "leave_out"], default="refuse")
    upload.add_argument("--long-rows", choices=["refuse", "cut", "leave_out"], default="refuse")


def _add_express(parsers: Any) -> None:
    express = _add(
        parsers, "express", commands.ask_express, "prompt tuning within seconds: prices, or buy"
    )
    _add_settings(express)
    express.add_argument("--within", type=float, metavar="S", help="buy: seconds until it is done")
    express.add_argument(
        "--watch", action="store_true", help="follow the job, then say what the lookup gained"
    )


def _add_logs(parsers: Any) -> None:
    transcript = _add_group(parsers, "transcript", None, "the public log of the auction")
    verify = _add(
        transcript, "verify", log_commands.verify_log, "replay every decision on this machine"
    )
    verify.add_argument("log", metavar="ZONE|FILE", help="a zone, or a log that was fetched")
    verify.add_argument(
        "--chain-only", action="store_true", help="check hashes and turns; decide nothing again"
    )
    fetch = _add(transcript, "fetch", log_commands.fetch_log, "store a zone's log")
    fetch.add_argument("zone", metavar="ZONE")
    fetch.add_argument("-o", "--output", help="file to write (default: ZONE.jsonl)")

    receipt = _add_group(parsers, "receipt", None, "what you hold of a bid")
    verify = _add(
        receipt, "verify", log_commands.verify_receipt, "check a bid's decision on this machine"
    )
    verify.add_argument("proof", metavar="PROOF|BID", help="a proof or receipt, or a bid's id")
    verify.add_argument("--limit", metavar="USD", help="what you bid")
    verify.add_argument("--key", action="append", default=[], metavar="HEX", help="of the market")
    verify.add_argument("--transcript", metavar="FILE", help="look it up in this log")
    fetch = _add(receipt, "fetch", log_commands.fetch_proof, "store a bid's proof")
    fetch.add_argument("bid", metavar="BID")
    fetch.add_argument("-o", "--output", help="file to write (default: BID.proof.json)")


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those of ``nodes join``, which the node's own program reads."""
    if arguments[:2] == ["nodes", "join"]:
        return arguments[:2], arguments[2:]
    return arguments, []


def _add(parsers: Any, name: str, command: Any, text: str) -> argparse.ArgumentParser:
    parser = _add_parser(parsers, name, text)
    parser.set_defaults(command=command)
    return parser


def _add_parser(parsers: Any, name: str, text: str) -> argparse.ArgumentParser:
    # What stands for 'per cent' would be a place of a value.
    shown = text.replace("%", "%%")
    described = shown[0].upper() + shown[1:] + "."
    parser = parsers.add_parser(name, help=shown, description=described)
    _add_common(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Add what every command takes, before it or after it: neither place undoes the other."""
    left = argparse.SUPPRESS
    parser.add_argument(
        "--json", action="store_true", default=left, help="print JSON, refusals too"
    )
    parser.add_argument("--profile", metavar="NAME", default=left, help="market and key to use")
    parser.add_argument(
        "--ca", metavar="FILE", default=left, help="certificates that sign the market's own"
    )


def _add_group(
    parsers: Any, name: str, command: Any, text: str, *, action: actions.Action | None = None
) -> Any:
    """Commands of one thing; without a verb, the command that is given."""
    parser = _add_parser(parsers, name, text)
    if command is not None:
        parser.set_defaults(command=command)
    if action is not None:
        actions.add_arguments(parser, action)
    return parser.add_subparsers(metavar="COMMAND", required=command is None)


def _add_work(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    parser.add_argument("--by", required=True, help="deadline: 90m, 6h, 2d or a moment")
    parser.add_argument(
        "--model", default="", help="begin with this adapter: ft:JOB, or warm:… of a quote"
    )
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
