"""The search for secrets over what is on this host: at most one false finding in twenty thousand files."""

from __future__ import annotations

import collections
import logging
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from imagebuilder.publish.leaks import rules
from imagebuilder.publish.leaks.layer import scan_layer
from imagebuilder.publish.leaks.text import Search
from tests.support.planted import Maker

log = logging.getLogger(__name__)
_LEAST_FILES = 20_000
_FOLDERS = (Path("/usr/share"), Path("/usr/lib/python3"), Path("/usr/include"), Path(sys.prefix) / "lib")


def ordinary() -> Iterator[Path]:
    """Give the files that packages of Debian and of the virtual environment brought."""
    for folder in _FOLDERS:
        yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def test_what_packages_bring_is_no_secret(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        for path in ordinary():
            tar.add(path, arcname=str(path).lstrip("/"))
    result = scan_layer(layer, Search(rules.load(), ()))
    counts = collections.Counter(finding.rule for finding in result.findings)
    log.info("%d files, %d bytes: %s", result.files, result.bytes, dict(counts))
    assert result.files >= _LEAST_FILES
    assert len(result.findings) <= result.files // _LEAST_FILES, "\n".join(map(str, result.findings))


def test_planted_secrets_of_many_seeds_are_found(tmp_path: Path) -> None:
    """At least 95 of 100, by kind and seed; what is missed are random values that look like words."""
    tried, missed, all_kinds = Search(rules.load(), ()), collections.Counter[str](), 0
    for seed in range(100, 110):
        folder = tmp_path / str(seed)
        folder.mkdir()
        planted = Maker(seed, folder).all()
        layer = folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            for number, item in enumerate(planted.values()):
                file = folder / f"file{number}"
                file.write_bytes(item.text)
                tar.add(file, arcname=item.path)
        found = {(finding.path, finding.rule) for finding in scan_layer(layer, tried).findings}
        missed.update(name for name, item in planted.items() if (item.path, item.rule) not in found)
        all_kinds += len(planted)
    log.info("%d planted, missed: %s", all_kinds, dict(missed))
    assert missed.total() <= all_kinds // 20, missed
