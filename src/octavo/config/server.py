"""The options of the HTTP server. Frozen; the command line fills them and `octavo.server` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from octavo.config.engine import LARGEST, is_unicode, require
from octavo.config.values import settle, shown
from octavo.protocol.pooling import POOLINGS

API_KEY_VARIABLE = "OCTAVO_API_KEY"
# Seconds: a day, and a week.
LONGEST_SHUTDOWN = 24 * 60 * 60
LONGEST_REQUEST = 7 * 24 * 60 * 60
LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server listens and what it accepts.

    `host` is 127.0.0.1 so that a fresh server is reachable from this machine only; give 0.0.0.0 to open it to the network. `port` 0 lets
    the system choose one. `api_key` holds every key that is accepted; empty means no key is asked for. `served_model_name` are the names
    that requests may use, the first of which replies carry; empty means the model's own. `max_body_bytes` limits a request's body.
    `chat_template` is a file or the template itself and replaces the model's. `allowed_origins` are those that browsers may call from
    ("*" for any).
    `shutdown_timeout` is how many seconds running requests get to finish after SIGINT or SIGTERM. `trust_request_chat_template` lets
    requests bring a template of their own. `tool_call_parser` is the format that the model writes tool calls in; None: the one that its
    chat template shows. `tool_parser_plugin` is a Python file, which is run, with further formats. `enable_auto_tool_choice` lets the model
    choose whether to call a tool. `reasoning_parser` tells its thinking from its answer; empty: its text is all answer. `pooling`, "last"
    or "mean", is what /v1/embeddings makes a vector of where a request doesn't say: the hidden state of the last token, or the mean of all.
    A request ends after `request_timeout` seconds, or sooner if it says so itself. With `max_queued_requests` no more sequences wait for a
    seat than that, and requests for more are refused; None: any number.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = ()
    served_model_name: tuple[str, ...] = ()
    max_body_bytes: int = 10 * 1024 * 1024
    chat_template: str | None = None
    response_role: str = "assistant"
    trust_request_chat_template: bool = False
    enable_auto_tool_choice: bool = True
    tool_call_parser: str | None = None
    tool_parser_plugin: str | None = None
    reasoning_parser: str = ""
    allowed_origins: tuple[str, ...] = ()
    root_path: str = ""
    uvicorn_log_level: str = "warning"
    access_log: bool = False
    shutdown_timeout: float = 30.0
    pooling: str = "last"
    request_timeout: float | None = None
    max_queued_requests: int | None = None

    def __post_init__(self) -> None:
        settle(self, paths=("chat_template", "tool_parser_plugin"), sizes=("max_body_bytes",))
        for name in ("api_key", "served_model_name", "allowed_origins"):
            values = getattr(self, name)
            require(all(values), name, "holds an empty name" if name != "api_key" else "holds an empty key")
            require(all(map(is_unicode, values)), name, "holds what is not valid UTF-8")
        require(bool(self.host), "host", "is empty")
        require(0 <= self.port <= 65535, "port", f"must be from 0 to 65535, not {shown(self.port)}")
        require(self.max_body_bytes >= 1, "max_body_bytes", f"must be at least 1, not {shown(self.max_body_bytes)}")
        require(self.pooling in POOLINGS, "pooling", f"must be one of {', '.join(POOLINGS)}, not {self.pooling!r}")
        require(bool(self.response_role), "response_role", "is empty")
        for name in ("response_role", "root_path"):
            require(is_unicode(getattr(self, name)), name, "is not valid UTF-8")
        wait = self.shutdown_timeout
        require(0 <= wait <= LONGEST_SHUTDOWN, "shutdown_timeout", f"must be from 0 to {LONGEST_SHUTDOWN} seconds, not {wait}")
        limit = self.request_timeout
        require(
            limit is None or 0 < limit <= LONGEST_REQUEST,
            "request_timeout",
            f"must be over 0 and at most {LONGEST_REQUEST} seconds, not {limit}",
        )
        queued = self.max_queued_requests
        require(queued is None or 0 <= queued <= LARGEST, "max_queued_requests", f"must be from 0 to {LARGEST}, not {shown(queued)}")
        level = self.uvicorn_log_level
        require(level in LOG_LEVELS, "uvicorn_log_level", f"must be one of {', '.join(LOG_LEVELS)}, not {level!r}")
        root = self.root_path
        require(not root or (root.startswith("/") and not root.endswith("/")), "root_path", f'must look like "/prefix", not {root!r}')

    def with_environment(self, environ: Mapping[str, str]) -> ServerOptions:
        """These options with the keys of OCTAVO_API_KEY (separated by commas) where no key was given."""
        keys = tuple(key.strip() for key in environ.get(API_KEY_VARIABLE, "").split(",") if key.strip())
        return replace(self, api_key=keys) if keys and not self.api_key else self
