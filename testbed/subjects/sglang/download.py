"""A release's wheel from the package index, by pip: a child that ends when its parent does."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from testbed.death import die_with_parent
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.subjects.sglang.names import PACKAGE, RELEASE

TIMEOUT_S = 600

# The same wheel on every machine, whatever its own Python: only the sources in it are used.
_WHEEL_TAGS = (
    "--python-version=3.11",
    "--implementation=cp",
    "--abi=cp311",
    "--abi=none",
    "--platform=manylinux_2_34_x86_64",
    "--platform=manylinux2014_x86_64",
)


def download(version: str, into: Path) -> Path:
    """Path of the wheel, in the folder ``into``, where pip's temporary files go too.

    Raises BadInput for a release that does not exist, EnvironmentFault where the index cannot be
    reached or takes longer than TIMEOUT_S.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--retries=2", *_WHEEL_TAGS]
    command += ["--dest", str(into), f"{PACKAGE}=={version}"]
    try:
        pip = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "TMPDIR": str(into)},
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"subject {RELEASE}{version}: the package index did not deliver in {TIMEOUT_S} s"
        ) from error
    wheels = sorted(into.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise _refusal(version, pip.stderr)
    return _of_version(version, wheels[0])


def _of_version(version: str, wheel: Path) -> Path:
    # 0.5.019 is 0.5.19 to pip: one release, one name, or it would be kept and compared twice.
    spelt = wheel.name.split("-")[1]
    if spelt != version:
        raise BadInput(f"subject {RELEASE}{version}: the index spells it {RELEASE}{spelt}")
    return wheel


def _refusal(version: str, said: str) -> Exception:
    offered = re.search(r"\(from versions: ([^)]*)\)", said)
    if offered is not None and offered[1] != "none":
        newest = ", ".join(offered[1].split(", ")[-3:])
        return BadInput(
            f"subject {RELEASE}{version}: no such release in the package index (newest: {newest})"
        )
    errors = [line for line in said.splitlines() if line.strip()]
    why = errors[-1].strip() if errors else "pip said nothing"
    if offered is not None:
        why = "the package index cannot be reached or has no sglang"
    return EnvironmentFault(
        f"subject {RELEASE}{version}: cannot be fetched and is not in the cache ({why}); "
        "fetch it once on a machine with network, or choose another subject"
    )
