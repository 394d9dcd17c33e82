"""``python -m workers prepare``: clean a data set on this machine, without a market."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from tokenizers import Tokenizer

from workers.preparation.comparing import compare_datasets
from workers.preparation.inspection import inspect_dataset
from workers.preparation.listing import list_rows
from workers.preparation.prepare import prepare_dataset
from workers.preparation.reading import UnreadableFileError
from workers.preparation.settings import PreparationSettings, PreparationSettingsError
from workers.preparation.tracing import iter_traced_lines


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers prepare", description=__doc__)
    parser.add_argument("file", type=Path, help="JSONL, JSON, CSV or plain text")
    parser.add_argument(
        "--out", type=Path, help="a new folder for the result; without it, a report only"
    )
    parser.add_argument(
        "--compare", type=Path, help="a prepared file: what became of the rows, as a report"
    )
    parser.add_argument(
        "--translated", action="store_true", help="compared with its original, row by row"
    )
    parser.add_argument("--gold", type=Path, help="compared rows as they should be, by their ids")
    parser.add_argument("--gold-exact", action="store_true", help="those are to be word for word")
    parser.add_argument("--rows", type=Path, help="list every row with a proposal, as JSON lines")
    parser.add_argument("--traced", type=Path, help="copy the rows, each with its id")
    parser.add_argument("--row-ids", action="store_true", help="the rows bring their ids")
    parser.add_argument(
        "--roles", type=json.loads, default={}, help='what columns hold: {"frage": "prompt"}'
    )
    parser.add_argument("--tokenizer", help="tokenizer.json that tokens are counted by")
    parser.add_argument("--mask", action="store_true", help="replace personal data (not names)")
    parser.add_argument("--phone-regions", type=_split, default=(), help="such as US,DE")
    parser.add_argument(
        "--languages", type=_split, default=(), help="languages to keep, such as en,de"
    )
    parser.add_argument("--min-chars", type=int, default=1)
    parser.add_argument("--max-chars", type=int, default=1_000_000)
    parser.add_argument("--keep-duplicates", action="store_true")
    parser.add_argument("--keep-format", action="store_true", help="do not rewrite rows as chats")
    parser.add_argument("--validation-share", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu-s", type=int, help="end when it takes more processor time")
    parser.add_argument("--memory-bytes", type=int, help="end when it takes more memory")
    return parser.parse_args(arguments)


def _load_counter(path: str | None) -> Callable[[str], int] | None:
    if path is None:
        return None
    tokenizer = Tokenizer.from_file(path)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _write_lines(
    stream: BinaryIO, options: argparse.Namespace, settings: PreparationSettings
) -> dict[str, int]:
    build = settings.build_masker
    lines = (
        iter_traced_lines(stream, build_masker=build)
        if options.rows is None
        else (
            json.dumps(asdict(row))
            for row in list_rows(stream, build_masker=build, roles=options.roles)
        )
    )
    count = 0
    with (options.rows or options.traced).open("w", encoding="utf-8") as out:
        for line in lines:
            out.write(line + "\n")
            count += 1
    return {"rows": count}


def main(arguments: list[str]) -> int:
    """Print the report as JSON; 0 when there is a result, 1 when the file cannot be used."""
    options = _parse(arguments)
    for limit, most in (
        (resource.RLIMIT_CPU, options.cpu_s),
        (resource.RLIMIT_AS, options.memory_bytes),
    ):
        if most is not None:
            resource.setrlimit(limit, (most, most))
    try:
        settings = PreparationSettings(
            to_chat=not options.keep_format,
            roles=options.roles,
            drop_duplicates=not options.keep_duplicates,
            mask_personal_data=options.mask,
            phone_regions=options.phone_regions,
            languages=options.languages,
            min_chars=options.min_chars,
            max_chars=options.max_chars,
            validation_share=options.validation_share,
            seed=options.seed,
        )
        with options.file.open("rb") as stream:
            if options.rows is not None or options.traced is not None:
                found = _write_lines(stream, options, settings)
            elif options.compare is not None:
                with (
                    options.compare.open("rb") as delivered,
                    (options.gold or Path(os.devnull)).open("rb") as gold,
                ):
                    found = asdict(
                        compare_datasets(
                            stream,
                            delivered,
                            build_masker=settings.build_masker,
                            translates=options.translated,
                            roles=options.roles,
                            gold=gold if options.gold else None,
                            gold_is_exact=options.gold_exact,
                        )
                    )
            elif options.out is None:
                found = asdict(inspect_dataset(stream, roles=options.roles))
            else:
                options.out.mkdir(parents=True, exist_ok=False)
                plan = prepare_dataset(
                    stream,
                    options.out,
                    settings,
                    count_tokens=_load_counter(options.tokenizer),
                    has_row_ids=options.row_ids,
                )
                found = asdict(plan) | {"digest": plan.digest}
    except FileExistsError:
        print(f"{options.out} exists. Name a new folder.", file=sys.stderr)
        return 1
    except (OSError, PreparationSettingsError, UnreadableFileError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found, ensure_ascii=False, indent=2))
    return 0
