"""Parses forms with one file (`multipart/form-data`), with limits on the number of parts and the size of each field."""

from __future__ import annotations

import re
from typing import Any, cast

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from stoker.errors import InvalidInput

MAX_FIELD_BYTES = 4096
MAX_PARTS = 32
_MIME_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
"""Names of types and subtypes in RFC 6838, in lower case."""


class Form:
    """Collects the fields and the file of one form from the callbacks of a multipart parser."""

    def __init__(self) -> None:
        self._fields: dict[str, list[bytes]] = {}
        self.filename: str | None = None
        self.mime_type = ""
        """MIME type that the client gives for the file, in lower case without parameters; empty = none, or no valid
        one."""
        self.data = bytearray()
        """Bytes of the file that the caller has not taken yet."""
        self.is_complete = False
        self._num_parts = 0
        self._header = [bytearray(), bytearray()]
        self._name = ""
        self._kind = b""
        self._is_file = False

    def texts(self) -> dict[str, list[str]]:
        """The values of each field, in the order of the form."""
        return {name: [each.decode("utf-8", "replace") for each in values] for name, values in self._fields.items()}

    def checked_filename(self) -> str:
        """The name of the file.

        Raises:
            InvalidInput: the form is incomplete, or has no file.
        """
        if not self.is_complete:
            raise InvalidInput("the form is incomplete", parameter="file")
        if self.filename is None:
            raise InvalidInput("the form has no file called `file`", parameter="file")
        return self.filename

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._on_part,
            "on_header_field": self._on_header_name,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_end": self._on_end,
        }

    def _on_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidInput(f"a form has at most {MAX_PARTS} parts here")
        self._name, self._kind, self._is_file = "", b"", False

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _on_header(self) -> None:
        name, value = (bytes(part) for part in self._header)
        self._header = [bytearray(), bytearray()]
        if name.lower() == b"content-type":
            self._kind = value
        if name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            self._is_file = True
            filename = options[b"filename"].decode("utf-8", "replace")
            if self._name != "file" or self.filename is not None:
                raise InvalidInput("a form has one file here, called `file`", parameter=self._name[:100] or "file")
            self.filename = "".join(filter(str.isprintable, filename.replace("%22", '"')))  # browsers escape quotes

    def _on_headers(self) -> None:
        if self._is_file:
            self.mime_type = _mime_type(self._kind)
        else:
            self._fields.setdefault(self._name, []).append(b"")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.data += data[start:end]
            return
        values = self._fields[self._name]
        values[-1] += data[start:end]
        if len(values[-1]) > MAX_FIELD_BYTES:
            raise InvalidInput(
                f"`{self._name[:100]}` has more than {MAX_FIELD_BYTES} bytes", parameter=self._name[:100]
            )

    def _on_end(self) -> None:
        self.is_complete = True


def _mime_type(content_type: bytes) -> str:
    kind = content_type.partition(b";")[0].strip().lower().decode("latin-1")
    return kind if _MIME_TYPE.fullmatch(kind) else ""


def boundary_of(request: Request, expected: str) -> bytes:
    """The boundary between the parts of a request's form.

    Args:
        request: the request whose body is a form.
        expected: description of the expected parts, for the error.

    Raises:
        InvalidInput: the body is not a form.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidInput(f"send a form (multipart/form-data) with {expected}", parameter="file")
    return boundary


def parse_form(boundary: bytes, body: bytes) -> Form:
    """Parses a form that was received as a whole.

    Raises:
        InvalidInput: the form is malformed, incomplete, or has no file.
    """
    form = Form()
    parser = MultipartParser(boundary, cast("Any", form.callbacks()))
    try:
        parser.write(body)
    except MultipartParseError as error:
        raise InvalidInput(f"the form cannot be read: {error}", parameter="file") from None
    form.checked_filename()
    return form
