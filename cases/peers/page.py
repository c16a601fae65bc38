"""The page of what was run: ``docs/peers.md``."""

from collections.abc import Sequence
from pathlib import Path

import torch

from cases.peers.table import Row, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "peers.md"

_PAGE = """# Programs that nobody here wrote

Made by `python -m cases.peers --page` with torch {torch} on gloo, on CPUs: measured by running, not
from memory. `make test-peers` runs all of it; a part is in `make test`.

Each program runs **bare** (no recorder in the process) and **recorded**, as torchrun would start
it: it finds `RANK`, `WORLD_SIZE`, `MASTER_ADDR` ... in its environment and makes its own groups.
Both must return the same numbers on every rank, and the verdict must be `ok`. Then it runs
**broken**: one call of one rank is damaged *above* the recorder (`testbed/programs/breaks.py`), as
if the program had made it so; where damage cannot express it, by an argument of the program. The
verdict must then not be `ok`, and the first divergence must name the rank and the operation or
channel that are wrong, as reasoned beforehand in `cases/peers/catalog.py`. Of a message both ends
count as named: two ranks have no majority. Where two ranks wait for each other in two messages,
both are told, and either may be the one that was left out.

From PyTorch's wheel: every method of `DistributedTest` for gloo, at 3 ranks; the seven schedules of
`torch.distributed.pipelining`, at 2 and 4 ranks. From FairScale, where `requirements-peers.txt` is
installed: ShardedDDP with the optimizer OSS. Small programs over PyTorch's own: DDP (also `no_sync`
and `join`), FSDP2, tensor parallelism, DTensor, functional collectives. Written here, as people
write them: 1F1B, GPipe and interleaved pipelines with a function for each way; rings, publish and
follow, receives from anybody, early and late waits, objects, threads, groups of all kinds.

`first named` is cut at 150 letters. {lines} lines, {wrong} not as they must be.

{table}

## What cannot be seen

- **Two microbatches swapped** whose messages are alike in length, dtype, tag and call site: no
  record without notes can tell them apart, and the verdict is `ok` though the result is wrong. The
  lines that say so are there to show it. Where the microbatches differ in their length, as with
  packed sequences, the swap is named. `Schedule1F1B` waits for each message before it makes the
  next: there two cannot be swapped.
- **A collective skipped** on one rank whose next one on that group is alike: seen at the first that
  is not, or at the end, by the number of them.
- **A message dropped** among others that are alike: seen when the last one is missing. The ordinal
  is then that of the last one, not of the dropped one.
- Damage to what C++ code starts by itself (DDP's reducer, functional collectives) is done by
  arguments of the programs, not by `breaks`.

Of PyTorch's tests some fail bare on this machine, at 3 ranks, on gloo, with this torch: for want of
torchvision or of a GPU, or because gloo cannot do what they ask. They must fail recorded just so,
with a verdict of `crash`; they are counted in the line of the suite.
"""


def write(rows: Sequence[Row]) -> Path:
    """Write the page."""
    text = _PAGE.format(
        torch=torch.__version__,
        lines=len(rows),
        wrong=sum(bool(row.wrong) for row in rows),
        table=table(rows, "pipe"),
    )
    PAGE.write_text(text, encoding="utf-8")
    return PAGE
