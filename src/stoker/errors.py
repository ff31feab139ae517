"""Every error that Stoker raises on purpose, each with a stable `code` that clients may match.

```
StokerError                     internal_error
├── InvalidInput                invalid_input             what was asked cannot be done; says which parameter
│   ├── ContextLengthExceeded   context_length_exceeded   prompt and context do not fit
│   ├── UnsupportedParameter    unsupported_parameter     known, but not available here
│   ├── UnsupportedSchema       unsupported_schema        a keyword of a JSON schema that cannot be enforced
│   ├── GrammarInvalid          grammar_invalid           a grammar, regular expression or schema that is malformed
│   ├── GrammarTooComplex       grammar_too_complex       a grammar or schema over one of the limits
│   ├── TemplateError           template_error            the chat template refused the messages
│   ├── MediaCrashed            media_crashed             an image or recording that ends the process that encodes it
│   ├── ModelNotFound           model_not_found           no such model is served
│   ├── AdapterNotFound         adapter_not_found         no such adapter is loaded
│   ├── AdapterInvalid          adapter_invalid           a file that is no adapter, or not one of this model
│   ├── ResponseNotFound        response_not_found        no such response is stored, or no longer
│   ├── ConversationNotFound    conversation_not_found    no such conversation or item is stored, or no longer
│   ├── FileNotStored           file_not_found            no such file is stored, or no longer
│   ├── BatchNotFound           batch_not_found           no such batch
│   └── SessionNotFound         session_not_found         no such session, or no longer
├── AuthenticationFailed        invalid_api_key           no API key, or not one of this server's
├── PermissionDenied            permission_denied         the client may not do this
├── ConfigError                 config_error              a flag, environment variable or config file is wrong
├── ModelError                  model_error               something about a model on disk or on its way there
│   ├── ModelFileNotFound       model_file_not_found
│   ├── ModelFileInvalid        model_file_invalid        truncated, not a GGUF, lying about itself
│   ├── ModelUnsupported        model_unsupported         well-formed, but no backend here runs it
│   └── DownloadFailed          download_failed           every source failed; the message lists each
├── ModelNotLoaded              model_not_loaded          loading, restarting or closed
├── Overloaded                  overloaded                the queue is full; try again after retry_after_s
├── ResourceExhausted           resource_exhausted        memory, disk or file handles ran out
├── Timeout                     timeout                   the request's deadline passed
├── Cancelled                   cancelled                 the client left or asked to stop
├── GrammarFailed               grammar_failed            a grammar cannot be followed any further
└── BackendError                backend_error             the forward pass failed
    └── EngineCrashed           engine_crashed            the engine process died under the request
```

An error carries its facts in `fields` (plain numbers and strings), so no client needs to parse a message.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

FieldValue: TypeAlias = str | int | float | bool | None

__all__ = [
    "AdapterInvalid",
    "AdapterNotFound",
    "AuthenticationFailed",
    "BackendError",
    "BatchNotFound",
    "Cancelled",
    "ConfigError",
    "ContextLengthExceeded",
    "ConversationNotFound",
    "DownloadFailed",
    "EngineCrashed",
    "FieldValue",
    "FileNotStored",
    "GrammarFailed",
    "GrammarInvalid",
    "GrammarTooComplex",
    "InvalidInput",
    "MediaCrashed",
    "ModelError",
    "ModelFileInvalid",
    "ModelFileNotFound",
    "ModelNotFound",
    "ModelNotLoaded",
    "ModelUnsupported",
    "Overloaded",
    "PermissionDenied",
    "ResourceExhausted",
    "ResponseNotFound",
    "SessionNotFound",
    "StokerError",
    "TemplateError",
    "Timeout",
    "UnsupportedParameter",
    "UnsupportedSchema",
    "error_from_code",
    "reason_of",
]


class StokerError(Exception):
    """Base of all errors of this package. The message says what is wrong and what to do about it."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, **fields: FieldValue) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class InvalidInput(StokerError):
    """The request cannot be honored as it stands. `fields["parameter"]` names the culprit if there is one."""

    code = "invalid_input"


class ContextLengthExceeded(InvalidInput):
    """Fields: `num_prompt_tokens`, `context_size` (both in tokens)."""

    code = "context_length_exceeded"


class UnsupportedParameter(InvalidInput):
    """Fields: `parameter`."""

    code = "unsupported_parameter"


class MediaCrashed(InvalidInput):
    """An image or a recording crashed the process that encodes it, twice. Fields: `parameter`."""

    code = "media_crashed"


class UnsupportedSchema(InvalidInput):
    """A JSON schema has a keyword that cannot be enforced. Fields: `pointer` (a JSON pointer), `keyword`, `reason`."""

    code = "unsupported_schema"


class GrammarInvalid(InvalidInput):
    """A grammar, a regular expression or a JSON schema is malformed. The message says where."""

    code = "grammar_invalid"


class GrammarTooComplex(InvalidInput):
    """A grammar or a JSON schema exceeds the limit of its size, its depth, or its compile time."""

    code = "grammar_too_complex"


class TemplateError(InvalidInput):
    """The model's chat template failed, or took too long, on these messages."""

    code = "template_error"


class ModelNotFound(InvalidInput):
    """Fields: `model`."""

    code = "model_not_found"


class AdapterNotFound(InvalidInput):
    """Fields: `adapter`."""

    code = "adapter_not_found"


class AdapterInvalid(InvalidInput):
    """An adapter's file is missing, damaged, or made for another model. Fields: `path`."""

    code = "adapter_invalid"


class ResponseNotFound(InvalidInput):
    """Fields: `response_id`."""

    code = "response_not_found"


class ConversationNotFound(InvalidInput):
    """Fields: `conversation_id`."""

    code = "conversation_not_found"


class FileNotStored(InvalidInput):
    """Fields: `file_id`."""

    code = "file_not_found"


class BatchNotFound(InvalidInput):
    """Fields: `batch_id`."""

    code = "batch_not_found"


class SessionNotFound(InvalidInput):
    """Fields: `session_id`."""

    code = "session_not_found"


class AuthenticationFailed(StokerError):
    """The request has no API key, or an unknown one."""

    code = "invalid_api_key"


class PermissionDenied(StokerError):
    """The request needs the admin key, or comes from a web page that is not allowed."""

    code = "permission_denied"


class ConfigError(StokerError):
    """A value of an option, an environment variable or a configuration file cannot be used."""

    code = "config_error"


class ModelError(StokerError):
    """A model file cannot be used or downloaded."""

    code = "model_error"


class ModelFileNotFound(ModelError):
    """Fields: `path`."""

    code = "model_file_not_found"


class ModelFileInvalid(ModelError):
    """The file is truncated, inconsistent, or not a model. Fields: `path`."""

    code = "model_file_invalid"


class ModelUnsupported(ModelError):
    """The file is valid, but no installed backend supports it."""

    code = "model_unsupported"


class DownloadFailed(ModelError):
    """Every source of a model failed; the message lists each source with its reason."""

    code = "download_failed"


class ModelNotLoaded(StokerError):
    """The model is loading, restarting, or was closed."""

    code = "model_not_loaded"


class Overloaded(StokerError):
    """The queue is full. Fields: `retry_after_s`."""

    code = "overloaded"


class ResourceExhausted(StokerError):
    """Memory, disk space or file handles ran out."""

    code = "resource_exhausted"


class Timeout(StokerError):
    """The request did not finish within its time limit, or one of its files took too long. Fields: `timeout_s`."""

    code = "timeout"


class Cancelled(StokerError):
    """The client disconnected or canceled the request."""

    code = "cancelled"


class GrammarFailed(StokerError):
    """A constrained answer cannot continue: its grammar reached a limit, or got a token that it forbids."""

    code = "grammar_failed"


class BackendError(StokerError):
    """The forward pass failed, or its logits cannot be sampled (NaN)."""

    code = "backend_error"


class EngineCrashed(BackendError):
    """The engine process crashed during the request."""

    code = "engine_crashed"


def _family(root: type[StokerError]) -> dict[str, type[StokerError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _family(child)
    return found


def error_from_code(code: str, message: str, fields: dict[str, FieldValue]) -> StokerError:
    """Rebuilds an error that crossed a process border. An unknown code becomes a plain `StokerError`."""
    return _family(StokerError).get(code, StokerError)(message, **fields)


def reason_of(error: BaseException) -> str:
    """Why a file or an address cannot be used, without the error number and the path that Python adds.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "notes.txt"))
    'No such file or directory'
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is not valid UTF-8"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
