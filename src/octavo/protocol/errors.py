"""The one exception tree.

OctavoError
├── InvalidRequestError (also ValueError)   a request that can't be served as written; HTTP 400 unless `status` says otherwise
│   ├── ModelNotFoundError                  HTTP 404
│   └── PayloadTooLargeError                HTTP 413
├── AuthenticationError                     HTTP 401
├── ModelLoadError                          a checkpoint that can't be used: the message names the file, and the tensor if one is at fault
│   └── UnsupportedModelError               a sound checkpoint that this version has no code for
├── ConfigError (also ValueError)           a flag or constructor argument that can't hold
├── PrefixCacheError                        the prefix cache could not be saved
├── EngineDeadError                         the engine stopped; HTTP 503
├── OverloadedError                         a queue limit, or a server that stops; HTTP 503
└── RequestTimeoutError                     a request's time was over; HTTP 408
"""

from __future__ import annotations


class OctavoError(Exception):
    """Base of every error that Octavo raises on purpose. `status` and `type` are those of the OpenAI error body."""

    status: int = 500
    type: str = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequestError(OctavoError, ValueError):
    """A request that can't be served as written. `param` names the field at fault."""

    status = 400
    type = "invalid_request_error"


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that this server does not serve."""

    status = 404
    type = "not_found_error"


class PayloadTooLargeError(InvalidRequestError):
    """The request's body is over the server's limit."""

    status = 413


class AuthenticationError(OctavoError):
    """A missing or wrong API key."""

    status = 401
    type = "authentication_error"


class ModelLoadError(OctavoError):
    """A model that can't be found, read or used. The message is one sentence that names the file and the tensor at fault."""


class UnsupportedModelError(ModelLoadError):
    """A sound checkpoint whose architecture, quantization or tokenizer this version has no code for."""


class ConfigError(OctavoError, ValueError):
    """A flag or constructor argument that can't hold. `param` names it."""


class PrefixCacheError(OctavoError):
    """The prefix cache could not be saved. The message is one sentence that names the folder, and says so where what was saved before is
    still there."""


class EngineDeadError(OctavoError):
    """The engine stopped before it could answer."""

    status = 503
    type = "service_unavailable"


class OverloadedError(OctavoError):
    """A limit on waiting requests was reached, or the server stops; trying again later may succeed."""

    status = 503
    type = "service_unavailable"


class RequestTimeoutError(OctavoError):
    """The time that a request had was over before its answer was complete."""

    status = 408
    type = "timeout_error"
