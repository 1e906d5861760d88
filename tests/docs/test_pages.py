"""What the pages say about files and variables is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
READS = ("host/settings.py", "endpoint/gateway.py", "sandboxes/choice.py", "types/places.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_modules_and_tests_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:src|tests|docs|scripts)/[\w/.-]+)`", page.read_text()):
        assert (ROOT / name).exists(), name


def test_the_table_has_the_variables_that_are_read() -> None:
    source = "".join((ROOT / "src" / "hostler" / name).read_text() for name in READS)
    read = set(re.findall(r'"(HOSTLER_[A-Z_]+)"', source))
    table = (ROOT / "README.md").read_text().split("## Environment variables")[1]
    assert sorted(re.findall(r"`(HOSTLER_[A-Z_]+)`", table)) == sorted(read)


def test_the_page_of_the_house_names_every_room() -> None:
    """Those that are promised to callers (`harness`, `sandbox`) and to testers are described elsewhere."""
    house = (ROOT / "docs" / "architecture.md").read_text().split("## The rooms")[1].split("\n## ")[0]
    rooms = {p.stem for p in (ROOT / "src" / "hostler").iterdir() if p.suffix in ("", ".py") and p.name[0] not in "_."}
    assert rooms - {"harness", "sandbox", "testing"} <= set(re.findall(r"`([a-z_]+)[`/]", house))
