"""Fetching and keeping releases, with a pip that needs no network."""

import fcntl
import hashlib
import os
import re
import select
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from testbed.model.errors import BadInput, EnvironmentFault
from testbed.subjects import sglang
from testbed.subjects.sglang import cache_folder, releases, wheels
from testbed.subjects.sglang.releases import MANIFEST, Release, entries, fetch, opened
from tests import fake_hiradix, fake_sglang
from tests.fake_sglang import FILES, VERSION, Pip

FILE = "srt/mem_cache/cache.py"
LIMIT_S = 60


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pip:
    pip = Pip()
    pip.install(monkeypatch, tmp_path)
    return pip


@pytest.fixture
def release(pip: Pip) -> Release:
    return fetch(VERSION)


def in_another_process() -> None:
    """Forget what this process has checked."""
    releases._SEEN_SOUND.clear()


def test_only_needed_sources_are_kept_and_a_second_fetch_asks_nobody(
    pip: Pip, release: Release
) -> None:
    again = fetch(VERSION)

    assert again == release == opened(VERSION)
    assert pip.calls == 1
    assert set(release.manifest.files) == {FILE, "srt/mem_cache/parts.py"}


def test_a_cached_file_that_changed_is_not_read(release: Release) -> None:
    (release.folder / FILE).write_text("changed = True\n")

    with pytest.raises(EnvironmentFault, match=r"the cached file was changed; .*subjects fetch"):
        release.read(FILE)


def spoil_file(release: Release) -> None:
    (release.folder / FILE).write_text("changed = True\n")


def lose_file(release: Release) -> None:
    (release.folder / FILE).unlink()


def break_manifest(release: Release) -> None:
    (release.folder / MANIFEST).write_text("{")


def manifest_of_another(release: Release) -> None:
    rewrite(release, version="9.8.6")


def manifest_of_an_earlier_testbed(release: Release) -> None:
    rewrite(release, format=0)


def rewrite(release: Release, **changes: object) -> None:
    manifest = msgspec.structs.replace(release.manifest, **changes)
    (release.folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))


@pytest.mark.parametrize(
    "spoil",
    [spoil_file, lose_file, break_manifest, manifest_of_another, manifest_of_an_earlier_testbed],
)
def test_an_entry_that_is_not_what_was_fetched_is_fetched_again(
    pip: Pip, release: Release, spoil: Callable[[Release], None]
) -> None:
    spoil(release)
    in_another_process()
    (told,) = entries()

    again = fetch(VERSION)

    assert told.trouble
    assert pip.calls == 2
    assert again.trouble() == ""
    assert [entry.trouble for entry in entries()] == [""]


def test_entries_tell_where_a_release_lies_and_what_it_takes(release: Release) -> None:
    (entry,) = entries()

    sizes = [file.stat().st_size for file in release.folder.rglob("*") if file.is_file()]
    assert entry.version == VERSION
    assert entry.folder == release.folder
    assert (entry.files, entry.size_bytes) == (3, sum(sizes))


def test_what_is_cached_is_what_a_fetch_need_not_ask_for(release: Release) -> None:
    absent = release.folder.with_name("sglang-0.0.1")
    absent.mkdir()

    assert releases.cached() == [VERSION]


UNIFIED = "sglang/srt/mem_cache/unified_radix_cache.py"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "class UnifiedRadixCache:\n    def match(self): ...\n",
        # The class and its check are there, what they need is not.
        "class UnifiedRadixCache:\n    def check_hicache_events(self): ...\n",
    ],
)
def test_a_release_that_cannot_be_lifted_is_bad_input_and_listed_nowhere(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    if text:
        monkeypatch.setitem(FILES, UNIFIED, text)
    for asked in (sglang.lifted, sglang.fetched):
        with pytest.raises(BadInput, match=r"subject sglang==9\.8\.7 cannot be lifted, choose an"):
            asked(f"sglang=={VERSION}")

    assert not [name for name in sglang.known() if VERSION in name]
    # Asked for again it is refused from the cache.
    assert pip.calls == 1


def test_a_release_is_listed_with_the_class_that_it_has(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in fake_hiradix.files().items():
        monkeypatch.setitem(FILES, f"sglang/srt/{path}", text)

    assert sglang.fetched(f"sglang=={VERSION}").endswith("hashes ok")

    (name,) = [name for name in sglang.known() if VERSION in name]
    assert name == f"sglang=={VERSION}:hiradix"
    assert sglang.known()[name].startswith("HiRadixCache of that release; ")
    with pytest.raises(BadInput, match="cannot be lifted"):
        sglang.lifted(f"sglang=={VERSION}")


def test_of_a_known_release_it_is_told_that_it_is_not_whole(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang, "KNOWN", (VERSION,))
    spoil_file(fetch(VERSION))

    assert "will be fetched again" in sglang.known()[f"sglang=={VERSION}"]


def test_versions_are_listed_by_value_and_a_post_release_after_what_it_mends() -> None:
    versions = ["0.5.12", "0.5.9", "0.5.12.post1", "0.5.13", "0.5.10.post1", "0.5.10"]

    assert sorted(versions, key=releases.age) == [
        "0.5.9",
        "0.5.10",
        "0.5.10.post1",
        "0.5.12",
        "0.5.12.post1",
        "0.5.13",
    ]


@pytest.mark.parametrize("version", ["\u0660.5.19", "\uff10.5.19", "0.5.\u0967"])
def test_digits_of_other_scripts_are_no_version_number(pip: Pip, version: str) -> None:
    with pytest.raises(BadInput, match="is no version number"):
        fetch(version)

    assert pip.calls == 0


def test_a_release_has_one_spelling(pip: Pip) -> None:
    with pytest.raises(BadInput, match=r"9\.8\.07: the index spells it sglang==9\.8\.7"):
        fetch("9.8.07")

    assert entries() == []


def test_what_a_killed_fetch_left_is_swept_and_what_a_live_one_holds_is_not(
    pip: Pip, tmp_path: Path
) -> None:
    root = cache_folder.root()
    left, live = root / ".fetching-left", root / ".fetching-live"
    for folder in (left, live):
        folder.mkdir(parents=True)
        (folder / "half.whl").write_text("half")
    held = os.open(live, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)

    fetch(VERSION)
    os.close(held)

    assert not left.exists()
    assert (live / "half.whl").exists()
    assert {path.name for path in root.glob(".fetching-*")} == {live.name}


def test_a_wheel_that_is_none_is_told_in_one_line(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(folder: Path) -> Path:
        path = folder / f"sglang-{VERSION}-py3-none-any.whl"
        path.write_bytes(b"PK")
        return path

    monkeypatch.setattr("tests.fake_sglang.wheel", cut_short)

    with pytest.raises(EnvironmentFault, match="cannot be kept in the cache folder") as told:
        fetch(VERSION)

    assert "\n" not in str(told.value)
    assert entries() == []


FETCHES = """
import sys
from collections.abc import Callable
from pathlib import Path
from testbed.subjects.sglang.download import download
sys.executable = sys.argv[1]
download("9.8.7", Path(sys.argv[2]))
"""


def test_pip_ends_when_the_testbed_is_killed(tmp_path: Path) -> None:
    # The stand-in says that it is there, then lasts for ever; its end closes the pipe.
    fifo, stand_in = tmp_path / "life", tmp_path / "pip"
    os.mkfifo(fifo)
    stand_in.write_text(f"#!/bin/sh\nexec 3>{fifo}\necho up >&3\nexec tail -f /dev/null\n")
    stand_in.chmod(0o755)
    testbed = subprocess.Popen([sys.executable, "-c", FETCHES, str(stand_in), str(tmp_path)])
    life = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    said = _read(life)
    testbed.send_signal(signal.SIGKILL)
    testbed.wait()
    end = _read(life)
    os.close(life)

    assert (said, end) == (b"up\n", b"")


def _read(descriptor: int) -> bytes:
    """What comes next; empty at the end. Before the first writer a FIFO is silent, not at its
    end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(LIMIT_S * 1000):
        pytest.fail(f"nothing came in {LIMIT_S} s")
    return os.read(descriptor, 64)


def test_a_release_that_does_not_exist_is_bad_input(pip: Pip) -> None:
    pip.stderr = "ERROR: no version that satisfies sglang==9.9.9 (from versions: 0.5.22, 0.5.23)\n"

    with pytest.raises(BadInput, match=r"sglang==9\.9\.9: no such release .*0\.5\.23\)") as caught:
        fetch("9.9.9")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    ["ERROR: no version that satisfies sglang==0.5.1 (from versions: none)\n", "ERROR: no pip\n"],
)
def test_an_index_out_of_reach_is_the_environments_fault_in_one_line(pip: Pip, said: str) -> None:
    pip.stderr = said

    with pytest.raises(EnvironmentFault, match="cannot be fetched and is not in the cache") as told:
        fetch("0.5.1")

    assert "\n" not in str(told.value)


def test_a_known_release_must_be_the_known_wheel(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wheels.SHA256, VERSION, "0" * 64)

    with pytest.raises(
        EnvironmentFault, match="delivered another wheel than the known one"
    ) as told:
        fetch(VERSION)

    assert "\n" not in str(told.value)
    assert entries() == []


def test_what_is_kept_of_another_wheel_than_the_known_one_is_fetched_again(
    pip: Pip, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(wheels.SHA256, VERSION, release.manifest.sha256)
    in_another_process()
    assert fetch(VERSION) == release
    rewrite(release, sha256="0" * 64)
    in_another_process()

    (told,) = entries()
    assert told.trouble.startswith("it was made from another wheel than the known one")
    assert fetch(VERSION) == release
    assert pip.calls == 2


def test_every_release_that_is_listed_as_known_has_its_hash() -> None:
    assert set(wheels.SHA256) == {*sglang.KNOWN, *sglang.KNOWN_HIRADIX}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in wheels.SHA256.values())


def delivers(
    monkeypatch: pytest.MonkeyPatch, fill: Callable[[zipfile.ZipFile], None]
) -> list[Path]:
    """Have pip deliver a wheel that ``fill`` fills beside the usual files; where they were."""
    made: list[Path] = []
    usual = fake_sglang.wheel

    def wheel(folder: Path) -> Path:
        made.append(usual(folder))
        with zipfile.ZipFile(made[-1], "a", zipfile.ZIP_DEFLATED) as archive:
            fill(archive)
        return made[-1]

    monkeypatch.setattr("tests.fake_sglang.wheel", wheel)
    return made


HUGE = "sglang/srt/mem_cache/huge.py"


def one_huge_file(archive: zipfile.ZipFile) -> None:
    archive.writestr(HUGE, bytes(9 << 20))


def many_large_files(archive: zipfile.ZipFile) -> None:
    for number in range(20):
        archive.writestr(f"sglang/srt/mem_cache/large_{number}.py", bytes(7 << 20))


def very_many_files(archive: zipfile.ZipFile) -> None:
    for number in range(201):
        archive.writestr(f"sglang/other/{number}", b"")


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (one_huge_file, "bytes of its largest source: 9437184, at most 8388608"),
        (many_large_files, "bytes of its sources: 1468"),
        (very_many_files, "files in it: 205, at most 200"),
    ],
)
def test_a_wheel_that_unpacks_to_more_than_sources_can_be_is_not_unpacked(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, fill: Callable[[zipfile.ZipFile], None], says: str
) -> None:
    delivers(monkeypatch, fill)
    monkeypatch.setattr(releases, "_MEMBERS_LIMIT", 200)
    read: list[str] = []

    def never(archive: zipfile.ZipFile, name: str) -> bytes:
        read.append(name)
        return b""

    monkeypatch.setattr(zipfile.ZipFile, "read", never)

    with pytest.raises(EnvironmentFault, match="its wheel is too large to be one") as told:
        fetch(VERSION)

    assert says in str(told.value)
    assert read == []
    assert entries() == []


def test_a_member_that_is_larger_than_it_says_is_not_read_beyond_that(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = delivers(monkeypatch, lambda zipped: zipped.writestr(HUGE, bytes(64 << 20)))
    whole = fake_sglang.wheel

    def lies(folder: Path) -> Path:
        path = whole(folder)
        raw = path.read_bytes()
        true, said = (64 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")
        path.write_bytes(raw.replace(true, said))
        return path

    monkeypatch.setattr("tests.fake_sglang.wheel", lies)

    with pytest.raises(EnvironmentFault, match="cannot be kept in the cache folder"):
        fetch(VERSION)

    assert len(made) == 1
    assert entries() == []


def test_a_file_of_a_wheel_that_is_no_text_is_not_kept_and_spoils_nothing(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivers(monkeypatch, lambda zipped: zipped.writestr("sglang/srt/mem_cache/odd.py", b"\xff"))

    release = fetch(VERSION)

    assert release.trouble() == ""
    assert not release.has("srt/mem_cache/odd.py")
    assert sglang.known()


def not_utf8(release: Release) -> None:
    raw = b"name = '\xff'\n"
    (release.folder / FILE).write_bytes(raw)
    changed = {**release.manifest.files, FILE: hashlib.sha256(raw).hexdigest()}
    rewrite(release, files=changed)


def a_folder(release: Release) -> None:
    (release.folder / FILE).unlink()
    (release.folder / FILE).mkdir()


def a_pipe(release: Release) -> None:
    (release.folder / FILE).unlink()
    os.mkfifo(release.folder / FILE)


@pytest.mark.parametrize("damage", [not_utf8, a_folder, a_pipe])
def test_a_damaged_file_is_told_in_the_list_and_fetched_again(
    pip: Pip, release: Release, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Release], None]
) -> None:
    damage(release)
    in_another_process()
    (told,) = entries()
    assert told.trouble.startswith(FILE)
    with pytest.raises(EnvironmentFault, match="fetches it again"):
        opened(VERSION).read(FILE)
    assert sglang.known()

    assert fetch(VERSION).trouble() == ""
    assert pip.calls == 2
