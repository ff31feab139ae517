"""PDF files are read in processes of their own; what is wrong with one is told, and costs only its request."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest
from PIL import Image

from stoker.errors import BackendError, InvalidInput, Timeout, UnsupportedParameter
from stoker.media import documents, pages, pdf
from stoker.media.confined import FileRefused
from stoker.media.documents import DocumentReader
from stoker.media.pdf import read_pdf
from tests.pdf_files import pdf_file

TWO = pdf_file(["Hello", "World"], drawing=b"1 0 0 rg 0 0 300 50 re f ")


def test_text_and_images_of_the_pages_come_in_order():
    read = DocumentReader().pages(TWO, 150, "x")
    assert [page.text.strip() for page in read] == ["Hello", "World"]
    for page in read:
        with Image.open(io.BytesIO(page.image)) as image:
            assert image.size == (150, 100)
            assert image.getpixel((5, 95)) == (255, 0, 0)
            assert image.getpixel((5, 5)) == (255, 255, 255)


def test_only_the_text_is_read_if_no_images_are_wanted():
    assert [(page.text.strip(), page.image) for page in DocumentReader().pages(TWO, 0, "x")] == [
        ("Hello", b""),
        ("World", b""),
    ]


def test_a_page_of_any_size_has_an_image_within_the_bound():
    for size in ((14_000.0, 100.0), (3.0, 9000.0), (0.5, 0.5)):
        with Image.open(io.BytesIO(read_pdf(pdf_file(["x"], size=size), 64)[0].image)) as image:
            assert max(image.size) in (64, 65)


def test_a_file_is_read_once_for_each_size_and_kept_as_long_as_there_is_room():
    reader = DocumentReader(max_kept_bytes=200)
    for _ in range(2):
        reader.pages(TWO, 0, "x")
    assert reader.num_read == 1
    reader.pages(TWO, 32, "x")  # larger than what may be kept
    reader.pages(TWO, 0, "x")
    assert reader.num_read == 3


def test_a_file_that_only_restricts_its_readers_is_read_and_one_with_a_password_is_refused():
    assert DocumentReader().pages(pdf_file(["Open"], password=""), 32, "x")[0].text.strip() == "Open"
    for side in (0, 32):
        with pytest.raises(InvalidInput, match="is encrypted"):
            DocumentReader().pages(pdf_file(["Secret"], password="key"), side, "x")


@pytest.mark.parametrize("side", [0, 32])
@pytest.mark.parametrize(
    "data",
    [b"%PDF-1.4", b"%PDF-1.7\n" + bytes(range(256)) * 20, TWO[:300], TWO[:-40].replace(b"/Kids", b"/Kid_")],
    ids=["empty", "noise", "cut off", "no pages"],
)
def test_a_damaged_file_is_refused_with_a_reason(data: bytes, side: int):
    with pytest.raises(FileRefused, match=r"damaged|has 0 pages"):
        read_pdf(data, side)


def test_every_prefix_and_many_changed_files_are_read_or_refused():
    """What pypdf and PDFium raise of damaged files is known."""
    for end in range(9, len(TWO), 37):
        damaged = bytearray(TWO)
        damaged[end] ^= 0x15
        for data in (TWO[:end], bytes(damaged)):
            with suppress(FileRefused):
                assert read_pdf(data, 8)


def test_too_many_pages_and_too_much_text_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pdf, "MAX_PAGES", 2)
    monkeypatch.setattr(pdf, "MAX_PICTURES", 1)
    with pytest.raises(FileRefused, match=r"has 3 pages: it may have 1 to 2$"):
        read_pdf(pdf_file("abc"), 0)
    with pytest.raises(FileRefused, match="each becomes an image"):
        read_pdf(pdf_file("ab"), 8)
    monkeypatch.setattr(pdf, "MAX_TEXT", 5)
    with pytest.raises(FileRefused, match="more than 5 characters"):
        read_pdf(TWO, 0)
    monkeypatch.setattr(pdf, "MAX_PICTURES", 2)
    monkeypatch.setattr(pdf, "MAX_TEXT", 50)
    monkeypatch.setattr(pdf, "MAX_PICTURE_BYTES", 100)
    with pytest.raises(FileRefused, match="larger than 100 bytes"):
        read_pdf(TWO, 8)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", "ends the process"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)", "takes too much computing time"),
        ("print('+', end='')\nraise SystemExit(1)", "ends the process"),
        ("print('?', end='')", "ends the process"),
    ],
)
def test_a_file_that_ends_its_process_is_refused_and_not_tried_again(program: str, reason: str):
    reader = DocumentReader((sys.executable, "-c", program))
    with pytest.raises(InvalidInput, match=rf"`here`: .*{reason}"):
        reader.pages(TWO, 0, "here")
    reader._program = ("/nowhere",)
    with pytest.raises(InvalidInput, match=rf"`there`: .*{reason}"):
        reader.pages(TWO, 0, "there")
    with pytest.raises(BackendError, match="cannot be started"):
        reader.pages(TWO, 1, "there")


def test_a_process_that_hangs_or_writes_without_end_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "_WAIT_S", 0.2)
    with pytest.raises(Timeout, match="busy"):
        DocumentReader((sys.executable, "-c", "import time; time.sleep(600)")).pages(TWO, 0, "x")
    monkeypatch.setattr(documents, "_WAIT_S", 300.0)
    monkeypatch.setattr(documents, "_MAX_ANSWER_BYTES", 1 << 20)
    endless = "import sys\nwhile True: sys.stdout.write('+' * 65536)"
    with pytest.raises(InvalidInput, match="ends the process"):
        DocumentReader((sys.executable, "-c", endless)).pages(TWO, 0, "x")


def test_what_happens_to_the_process_from_outside_tells_nothing_about_the_file(monkeypatch: pytest.MonkeyPatch):
    reader = DocumentReader((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(BackendError, match="ended from outside"):
        reader.pages(TWO, 0, "x")
    monkeypatch.setattr(documents, "_WAIT_S", 0.2)
    reader._program = (sys.executable, "-c", "import time; time.sleep(600)")
    with pytest.raises(Timeout, match="busy"):
        reader.pages(TWO, 0, "x")
    monkeypatch.setattr(documents, "_WAIT_S", 300.0)
    reader._program = documents._PROGRAM
    assert len(reader.pages(TWO, 0, "x")) == 2


def test_without_the_libraries_the_request_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedParameter, match=r"stoker\[documents\]"):
        DocumentReader().pages(TWO, 0, "x")


def test_what_decodes_files_can_open_nothing_and_start_nothing():
    program = textwrap.dedent("""
        import os, socket
        from stoker.media.confined import confine
        confine(memory_bytes=1 << 30)
        def refuses(call):
            try:
                call()
            except (OSError, MemoryError, RuntimeError):
                return True
            return False
        print(
            refuses(lambda: open("/etc/passwd")), refuses(socket.socket), refuses(os.pipe),
            refuses(lambda: bytearray(2 << 30)), os.getuid() == 0 or refuses(os.fork),
        )
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.stdout.split() == ["True"] * 5, done.stderr


def test_the_bound_on_answers_has_room_for_the_largest_document():
    assert documents._MAX_ANSWER_BYTES >= pages.MAX_PICTURE_BYTES + 4 * pages.MAX_TEXT + 64 * pages.MAX_PAGES
