"""``python -m workers shape MODEL``: the shape of a base model, read without its weights."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from transformers import AutoConfig

from workers.runtime.resident import LOADING_ERRORS, resolve_model_source
from workers.training.faults import TrainingFault
from workers.training.kept_bytes import describe_model


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers shape", description=__doc__)
    parser.add_argument("source", help="a hub id, a directory, or bundled:finetender-tiny")
    parser.add_argument("--revision", help="of a model on the hub")
    chosen = parser.parse_args(arguments)
    try:
        config = AutoConfig.from_pretrained(
            resolve_model_source(chosen.source), revision=chosen.revision, trust_remote_code=False
        )
        shape = describe_model(config)
    except (TrainingFault, *LOADING_ERRORS) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    print(json.dumps(asdict(shape)))
    return 0
