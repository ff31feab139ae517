from __future__ import annotations

import os
import sys
import threading

import pytest

from stoker.cache.disk import give_way


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_only_the_calling_thread_gives_way() -> None:
    before, found = os.getpriority(os.PRIO_PROCESS, 0), list[int]()

    def run() -> None:
        give_way()
        found.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [min(19, before + 10)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
