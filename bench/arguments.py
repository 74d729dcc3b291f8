"""Parsers of the programs' command lines."""

from __future__ import annotations

import argparse


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for `python -m PROGRAM`, whose help shows the description as it is."""
    return argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.RawTextHelpFormatter,
    )


def add_seeds(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--seeds`, a list of seeds such as `7`, `1-500` or `1-5,9`."""
    parser.add_argument(
        "--seeds",
        type=parse_seeds,
        default=parse_seeds(default),
        metavar=default,
        help=f"seeds to run, such as 7, {default} or 1-5,9 ({default})",
    )


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a list of numbers and ranges stands for."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds
