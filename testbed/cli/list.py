"""``python -m testbed list``: what there is, one line each."""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

from reports.results import write_json
from reports.table import as_list
from testbed.cli import keys as reference
from testbed.console.options import json_option
from testbed.fleet import MakesFleet
from testbed.model.exit_status import AS_EXPECTED
from testbed.sessions import catalog
from testbed.sessions.store import shown

AVAILABLE = {
    "subjects": "testbed.subjects",
    "faults": "testbed.faults",
    "oracles": "testbed.oracles",
}
"""What is listed by the ``available()`` of a module, which is imported only for that: those of
subjects import torch.
"""

LISTS = ("scenarios", *AVAILABLE, "keys")


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=LISTS,
        help="default: all but keys, every key a scenario file may have",
    )
    json_option(parser)


def run(options: argparse.Namespace, _: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    # The keys are many: only when asked for.
    wanted = [options.what] if options.what else [kind for kind in LISTS if kind != "keys"]
    listed = {kind: _listed(kind) for kind in wanted}
    stream = sys.stderr if options.json == "-" else sys.stdout
    for kind, entries in listed.items():
        if not options.what:
            print(f"{kind}:", file=stream)
        told = as_list([(entry["name"], entry["about"]) for entry in entries])
        print(told if options.what else indent(told, "  "), file=stream)
    if options.json:
        write_json(listed, options.json)
    return AS_EXPECTED


def _listed(kind: str) -> list[dict[str, Any]]:
    if kind in AVAILABLE:
        available: dict[str, str] = import_module(AVAILABLE[kind]).available()
        return [{"name": name, "about": first_sentence(text)} for name, text in available.items()]
    return _scenarios() if kind == "scenarios" else _keys()


def _scenarios() -> list[dict[str, Any]]:
    found = []
    for file in catalog.builtin_files():
        scenario = catalog.load([str(file)])[0]
        what = f"{scenario.subject} {scenario.topology}, {scenario.expected.verdict}"
        about = what + (f": {first_sentence(scenario.comment)}" if scenario.comment else "")
        found.append({"name": file.stem, "about": about, "path": shown(Path(file))})
    return found


def _keys() -> list[dict[str, Any]]:
    """Every key of a scenario file, what it takes and its default."""
    listed = []
    for key in reference.every_key():
        default = f", default {key.default}" if key.default else ", must be given"
        about = f"{key.takes}{default}" if key.name else ""
        name = f"{key.of}: {key.name}".rstrip(": ")
        listed.append({"name": name, "about": about, "meaning": key.meaning})
    return listed


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence, on one line, as plain text."""
    return " ".join(text.replace("``", "").split()).split(". ")[0].rstrip(".")
