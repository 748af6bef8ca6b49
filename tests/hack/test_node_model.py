"""The model's file on the node, which several tests may put there at the same moment."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

from node import model
from patience import PATIENCE_SECONDS


def test_two_that_copy_at_once_leave_one_whole_file(tmp_path, monkeypatch):
    file, place = tmp_path / "file", tmp_path / "models" / "file"
    file.write_bytes(b"weights" * 1000)
    both, copy = threading.Barrier(2, timeout=PATIENCE_SECONDS), shutil.copyfile

    def together(source, target):
        both.wait()  # each has seen that nothing is there
        copy(source, target)
        both.wait()

    monkeypatch.setattr(model.shutil, "copyfile", together)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: model.copy_whole(file, place), range(2)))
    assert place.read_bytes() == file.read_bytes()
    assert [item.name for item in place.parent.iterdir()] == ["file"]
    model.copy_whole(tmp_path / "not looked at", place)
