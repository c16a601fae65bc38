"""Names of subjects lifted from SGLang, and checkouts as their source."""

import subprocess
from pathlib import Path

import pytest

from testbed import subjects
from testbed.model.errors import BadInput
from testbed.subjects.sglang import checkout, names
from testbed.subjects.sglang.lift import Library
from testbed.subjects.sglang.names import SubjectName
from tests.fake_sglang import FILES, NAME


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("sglang==0.5.15.post1", SubjectName("release", "0.5.15.post1", "unified")),
        ("sglang==0.5.19:hiradix", SubjectName("release", "0.5.19", "hiradix")),
        ("sglang@/a/b", SubjectName("checkout", "/a/b", "unified")),
        ("sglang@../b:hiradix", SubjectName("checkout", "../b", "hiradix")),
    ],
)
def test_a_name_is_a_source_and_a_cache_class(name: str, parsed: SubjectName) -> None:
    assert names.is_lifted(name)
    assert names.parse(name) == parsed


@pytest.mark.parametrize("name", ["sglang@", "sglang@:hiradix", "sglang==0.5.19:radix", "sglang=="])
def test_a_name_without_a_source_is_bad_input(name: str) -> None:
    with pytest.raises(BadInput, match=r"names no folder|is no version number") as told:
        names.parse(name)

    assert "\n" not in str(told.value)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        file = tmp_path / "python" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "python" / "sglang"


@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_checkout_is_the_package_the_folder_that_holds_it_or_the_repository(
    package: Path, up: int
) -> None:
    folder = [package, *package.parents][up]

    found = checkout.find(str(folder))

    assert found.name == f"sglang@{folder}"
    assert found.has("srt/mem_cache/parts.py")
    assert found.told("srt/a.py") == f"sglang@{package}/srt/a.py"


def test_a_folder_that_is_none_or_holds_no_package_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no folder"):
        subjects.check(f"sglang@{tmp_path}/absent")
    with pytest.raises(BadInput, match="holds no sglang package"):
        subjects.check(f"sglang@{tmp_path}")


def test_a_package_without_the_class_names_the_module_that_is_missing(package: Path) -> None:
    with pytest.raises(
        BadInput, match=r"cannot be lifted, .*: .*module .*unified_radix_cache has no file"
    ) as told:
        subjects.prepare(f"sglang@{package}")

    assert "\n" not in str(told.value)


def test_a_package_whose_class_lacks_the_method_names_both(package: Path) -> None:
    file = package / "srt/mem_cache/unified_radix_cache.py"
    file.write_text("class UnifiedRadixCache:\n    def reset(self):\n        pass\n")

    with pytest.raises(BadInput) as told:
        subjects.prepare(f"sglang@{package}")

    assert f"UnifiedRadixCache in sglang@{file} has no check_hicache_events" in str(told.value)


def test_what_was_read_is_hashed_and_stays_what_it_was(package: Path) -> None:
    first, second = checkout.find(str(package)), checkout.find(str(package))
    Library(first, {}).module(NAME)
    (package / "srt/mem_cache/cache.py").write_text("changed = 1\n")
    Library(second, {}).module(NAME)
    Library(first, {}).module(NAME)

    told = [source.versions() for source in (first, second, first)]

    assert told[0]["sglang-folder"] == str(package)
    assert told[0]["sglang-sha256"] == told[2]["sglang-sha256"] != told[1]["sglang-sha256"]
    assert told[0]["sglang-commit"] == ""


def test_a_checkout_in_git_tells_its_commit_and_whether_it_was_changed(package: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), "-c", "user.name=a", "-c", "user.email=a@b.c"]
        told = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
        return told.stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=all")
    commit = git("rev-parse", "HEAD")

    clean = checkout.find(str(package)).versions()["sglang-commit"]
    (package / "cli.py").write_text("changed = 1\n")
    dirty = checkout.find(str(package)).versions()["sglang-commit"]

    assert (clean, dirty) == (commit, f"{commit}-dirty")
