"""Writes the pages of docs/ that come from the code: `gen_docs.py` writes them, `gen_docs.py --check` fails if one is stale.

docs/cli.md is read off the commands' own parameters, docs/api.md off the types that check requests, docs/python.md off signatures and
docstrings; nothing depends on a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from nested_fields import nested_rows
from python_page import python_page

from octavo.cli.app import app as commands
from octavo.cli.declare import Flag, Positional
from octavo.cli.refused import ALWAYS_ON, PERMISSIONS, REFUSED
from octavo.protocol.wire import EngineInfo
from octavo.server.anthropic_fields import MessagesRequest
from octavo.server.app import build_app
from octavo.server.fields import FIRST_VERSION, REFUSED_AT, SINCE, WITHOUT_EFFECT
from octavo.server.query import CLIENTS_OWN
from octavo.server.requests import LACKING, ChatRequest, CompletionRequest, TokenizeRequest
from octavo.server.responses_fields import ResponsesRequest

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTICE = "<!-- Written by scripts/gen_docs.py from the code; change the code and run `make docs`. -->\n"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# --- docs/cli.md ---------------------------------------------------------------------------------------------------------------------


def flag_row(flag: Flag) -> list[str]:
    """flag, value, default, meaning."""
    meaning, _, default = str(flag.help).partition(" Default: ")
    if default:
        default = default.removesuffix(".")
    elif isinstance(flag.fallback, bool):
        default = "on" if flag.fallback else "off"
    elif flag.fallback not in (None, ""):
        default = f"`{flag.fallback}`"
    value = "" if flag.is_flag else f"`{flag.metavar}`"
    return [", ".join(f"`{name}`" for name in [*flag.opts, *flag.secondary_opts]), value, default, meaning]


def command_section(command: click.Command, group: str = "") -> str:
    """One command, of a group of them or by itself: usage, what it does, its flags by topic."""
    arguments = [parameter for parameter in command.params if isinstance(parameter, Positional)]
    panels: dict[str, list[list[str]]] = {}
    for parameter in command.params:
        if isinstance(parameter, Flag):
            panels.setdefault(parameter.panel, []).append(flag_row(parameter))
    name = " ".join(filter(None, ("octavo", group, command.name)))
    usage = [str(a.metavar) if a.required else f"[{a.metavar}]" for a in arguments]
    text = f"## `{name}`\n\n```\n{' '.join([name, *usage, *(['[OPTIONS]'] if panels else [])])}\n```\n\n"
    text += f"{command.help}\n\n"
    if arguments:
        text += table(["argument", "meaning"], [[f"`{a.metavar}`", a.text] for a in arguments]) + "\n"
    for panel, rows in panels.items():
        text += f"**{panel}**\n\n" + table(["flag", "value", "default", "meaning"], rows) + "\n"
    return text


def refused_section() -> str:
    """The flags of `vllm serve` that are refused by name."""
    rows = []
    for refused in REFUSED:
        fine = [f"`{value}`" for value in refused.harmless] or ([f"`--no-{refused.flag[2:]}`"] if refused.switch else [])
        spelled = ", ".join(f"`{name}`" for name in (refused.flag, *refused.aliases))
        rows.append([spelled, ", ".join(fine), refused.hint[:1].upper() + refused.hint[1:]])
    always = ", ".join(f"`{flag}`" for flag in ALWAYS_ON)
    return (
        "## Flags of `vllm serve` that are refused\n\n"
        "`octavo serve` refuses these by name, with exit code 2, unless the value asks for what Octavo does anyway. "
        f"{always} change nothing here and are let through, and so is `{PERMISSIONS[0]}`, a permission that no model here needs: code that "
        "a checkpoint brings is never run; `--disable-custom-all-reduce` is, for there is none. "
        "`--flag_name` and `--flag-name` are the same.\n\n" + table(["flag", "let through", "why"], rows)
    )


def environment_section() -> str:
    """What is read from the environment."""
    rows = [
        [
            "`OCTAVO_API_KEY`",
            "Keys that clients must bring, separated by commas, where `--api-key` gives none; for `--url`, the key to bring.",
        ],
        ["`OCTAVO_CACHE`", "The folder that models from PyPI are kept in. Default: `octavo` in `$XDG_CACHE_HOME`, or in `~/.cache`."],
        [
            "`OCTAVO_CPU_ISA`",
            "The instruction set of the cpu backend: `portable`, `avx2`, `avx512_vnni` or `avx512_bf16`. Default: the best.",
        ],
        ["`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`", "As in huggingface_hub, which fetches and keeps the models of the hub."],
    ]
    return "## Environment\n\n" + table(["variable", "meaning"], rows) + "\n"


def cli_page() -> str:
    """docs/cli.md."""
    sections = []
    groups = [command for command in commands.commands.values() if isinstance(command, click.Group)]
    sections += [command_section(command) for command in commands.commands.values() if command not in groups]
    for group in groups:
        sections += [command_section(command, str(group.name)) for command in group.commands.values()]
    return (
        f"{NOTICE}# Command line\n\n"
        "Errors are one sentence on stderr, and so is wrong usage (`octavo pull: Missing argument 'MODEL'.`). "
        "Exit codes: 0 done, 1 an error, such as a value that can't hold, 2 a command line that can't be read, 130 Ctrl-C, "
        "141 the reader of stdout went away.\n\n"
        "Sizes are written like `2GiB`, `512MiB`, `1.5GB` or in bytes: KiB, MiB, GiB, TiB (and K, M, G, T) are powers of 1024, "
        "KB, MB, GB, TB of 1000. Numbers of tokens are written like 8192, 8K (8192) or 25.6k (25600).\n\n"
        + environment_section()
        + "".join(sections)
        + refused_section()
    )


# --- docs/api.md ---------------------------------------------------------------------------------------------------------------------


def kind_of(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return "object: " + ", ".join(f"`{field}`" for field in schemas[name]["properties"])
    if "anyOf" in schema:
        kinds = [kind_of(part, schemas) for part in schema["anyOf"] if part.get("type") != "null"]
        return ", or ".join(kinds)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kind = str(schema.get("type", "any"))
    limits = [f"{sign} {schema[key]:g}" if abs(schema[key]) < 2**31 - 1 else "" for key, sign in LIMITS.items() if key in schema]
    if schema.get("minLength") or schema.get("minItems"):
        limits.append("not empty")
    if "maxItems" in schema:
        limits.append(f"at most {schema['maxItems']}")
    own = ", ".join(filter(None, limits))
    if kind == "array":
        return f"array{own and f' ({own})'} of {kind_of(schema.get('items', {}), schemas)}"
    return f"{kind}, {own}" if own else kind


LIMITS = {"minimum": "≥", "maximum": "≤", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}


def fields_table(names: Iterable[str], schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """The fields `names` of one request."""
    rows = []
    for name in names:
        note = " (required)" if name in schema.get("required", ()) else ""
        rows.append([f"`{name}`{note}", kind_of(schema["properties"][name], schemas)])
    return table(["field", "value"], rows)


def off_table(off_values: Mapping[str, tuple[Any, ...]]) -> str:
    """Fields that are accepted only with a value that asks for nothing."""
    import json

    return table(
        ["field", "let through besides null"],
        [[f"`{name}`", ", ".join(f"`{json.dumps(value)}`" for value in values)] for name, values in off_values.items()],
    )


def matrix(document: dict[str, Any]) -> str:
    """What each route that takes a body does with each field that any of them knows, and since when."""
    found: dict[str, dict[str, str]] = {}
    routes = []
    for path, methods in document["paths"].items():
        body = methods.get("post", {}).get("requestBody")
        if body is None:
            continue
        routes.append(path)
        name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        for field, schema in document["components"]["schemas"][name]["properties"].items():
            off = schema.get("description") == LACKING or field in REFUSED_AT.get(path, ())
            found.setdefault(field, {})[path] = "refused" if off else "no effect" if field in WITHOUT_EFFECT else "acts"
    rows = [
        [f"`{field}`", *(states.get(route, "–") for route in routes), SINCE.get(field, FIRST_VERSION)]
        for field, states in sorted(found.items())
    ]
    return table(["field", *(f"`{route}`" for route in routes), "since"], rows)


def nested_table(document: dict[str, Any]) -> str:
    """The fields within fields."""
    schemas = document["components"]["schemas"]
    bodies = {}
    for path, methods in document["paths"].items():
        if body := methods.get("post", {}).get("requestBody"):
            fields = schemas[body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]]["properties"]
            bodies[path] = {name: schema for name, schema in fields.items() if name not in REFUSED_AT.get(path, ())}
    return table(["field", "value", "routes", ""], nested_rows(bodies, schemas, kind_of))


def shared_off() -> dict[str, tuple[Any, ...]]:
    """What completions and chat both lack."""
    chat = ChatRequest.off_values
    return {name: values for name, values in CompletionRequest.off_values.items() if chat.get(name) == values}


def api_page() -> str:
    """docs/api.md."""
    llm: Any = SimpleNamespace(
        info=EngineInfo("model", "llama", "reference", 1, 1, 1, 1), tokenizer=SimpleNamespace(chat_template=None), default_sampling={}
    )
    from octavo.config.server import ServerOptions

    document = build_app(llm, ServerOptions()).openapi()
    schemas = document["components"]["schemas"]
    routes = [
        [f"`{m.upper()} {p}`", str(entry["summary"]), SINCE.get(p, FIRST_VERSION)]
        for p, methods in document["paths"].items()
        for m, entry in methods.items()
    ]
    queries = [
        [f"`{m.upper()} {p}`", f"`{query['name']}`", kind_of(query["schema"], schemas), str(query["schema"].get("default", ""))]
        for p, methods in document["paths"].items()
        for m, entry in methods.items()
        for query in entry.get("parameters", ())
        if query["in"] == "query" and query["name"] not in CLIENTS_OWN
    ]
    completion, chat = schemas["CompletionRequest"], schemas["ChatRequest"]
    off = shared_off()

    def own(kind: Any, schema: dict[str, Any]) -> list[str]:
        return [name for name in schema["properties"] if name not in kind.off_values]

    def alike(name: str) -> bool:
        return kind_of(chat["properties"][name], schemas) == kind_of(completion["properties"][name], schemas)

    both = [name for name in own(ChatRequest, chat) if name in own(CompletionRequest, completion) and alike(name)]
    only = {
        kind: [name for name in own(kind, schema) if name not in both]
        for kind, schema in ((CompletionRequest, completion), (ChatRequest, chat))
    }
    return f"""{NOTICE}# HTTP API

{table(["route", "what it does", "since"], routes)}
`/openapi.json` describes them for tools, `/docs` for people. With `--api-key`, every route but `/health` wants
`Authorization: Bearer KEY`. An unknown field, a wrong type or a value outside its limits is refused with an error that names the field:
`{{"error": {{"message", "type", "param", "code"}}}}`. A field that is null counts as absent; within messages, items, tools
and other objects this holds of names that Octavo does not know, too, since clients write all that they know. [sampling.md](sampling.md)
says what the sampling fields mean.

## What becomes of a request

| reply | when |
| --- | --- |
| 400 | a field is unknown (the error names the nearest known one), of the wrong type or outside its limits, or can't act here |
| 401 | the API key is missing or wrong |
| 404 | no such route, or no such model |
| 408 | its time was over: `timeout` of the request or `--request-timeout`, in seconds from its arrival. A stream ends with this error |
| 413 | the body is longer than `--max-body-size` |
| 500 | it failed by itself, as on logits that are no numbers; others are unharmed |
| 503 | `--max-queued-requests` sequences wait already, or the server stops (with `Retry-After`), or the engine has died |

Its id is `request_id`, or the header `X-Request-Id`, which comes back with the reply and is part of the reply's `id`. On SIGTERM or SIGINT
new requests get 503, `/health` too, and running ones `--shutdown-timeout` seconds to finish; a second signal ends them at once. A client
that goes away ends its request.

## Parameters of the URL

{table(["route", "parameter", "value", "default"], queries)}
Other parameters are refused, but for those of `/health`, `/metrics` and `GET /v1/responses/{{response_id}}`, which monitors and clients
add to. On routes under `/v1`, `api-version`, `beta` and `client_version`, which clients of Azure and Anthropic and Codex send, change
nothing. [kv-cache.md](kv-cache.md#what-the-cache-holds) says what `/kv/blocks` answers.

## Completions and chat

{fields_table(both, chat, schemas)}
`user`, `metadata`, `service_tier`, `store`, `safety_identifier`, `prompt_cache_key` and `prompt_cache_retention` are OpenAI's; they can't
change the text and are accepted for the sake of clients that send them. A `seed` asks that the same request give the same text, which
with `use_beam_search` it does anyway. The header `X-Request-Id` wins over `request_id`, and `max_completion_tokens` over `max_tokens`.
`add_special_tokens` can't be true with token ids, `include_reasoning` false without `--reasoning-parser`, `echo` true in a chat whose
last message is of another role than the answer, and `chat_template_kwargs`, `documents` and `tools` can't hold what the chat template
does not read.

## Only `/v1/completions`

{fields_table(only[CompletionRequest], completion, schemas)}
`max_tokens` may be 0 with `echo` or `prompt_logprobs`, which then tell of the prompt alone.

## Only `/v1/chat/completions`

{fields_table(only[ChatRequest], chat, schemas)}
Chat `messages` may stand in place of the `prompt`; what the chat template makes of them is then completed.

## Only `/generate`

vLLM's first API: `prompt`, one string, `max_tokens` as in chat, and the fields of completions and chat above but `stream_options`, and
those that tell of tokens rather than of text (the table below). The reply is
`{{"text": [...]}}`, the prompt with what follows it, once for each of `n`; with `stream` it is a line of such JSON for each step, with all
the text so far.

## `/v1/embeddings`

{fields_table(schemas["EmbeddingRequest"]["properties"], schemas["EmbeddingRequest"], schemas)}
`pooling` is `--pooling` of the server unless given: `last`, the hidden state of the last token after the model's last norm, or `mean`,
that of all tokens. Vectors have a length of 1 unless `normalize` is false. `dimensions` may only be what the model has.

## `/v1/responses`

{fields_table(own(ResponsesRequest, schemas["ResponsesRequest"]), schemas["ResponsesRequest"], schemas)}
OpenAI's newer API, whole or as its typed events: the answer is a list of items (`reasoning`, `message`, `function_call`). Nothing is
stored: `store` may be true and is answered with false, `previous_response_id` is refused, and a fetched id is a 404. Calls of functions and
what they gave stand in the `input`. These are let through only if they ask for nothing:

{off_table(ResponsesRequest.off_values)}
## `/v1/messages` and `/v1/messages/count_tokens`

{fields_table(own(MessagesRequest, schemas["MessagesRequest"]), schemas["MessagesRequest"], schemas)}
Anthropic's API, whole or as its events, with its shape of errors; the key may come in `x-api-key`. A last message of the assistant's is
continued. `count_tokens` takes the fields of the conversation: `messages`, `system`, `tools`, `tool_choice`, `thinking`,
`chat_template_kwargs`. These are let through only if they ask for nothing:

{off_table(MessagesRequest.off_values)}
[tools.md](tools.md) says how tools, thinking and conversations work on all of these.

## `/tokenize` and `/detokenize`

{fields_table(own(TokenizeRequest, schemas["TokenizeRequest"]), schemas["TokenizeRequest"], schemas)}
{fields_table(schemas["DetokenizeRequest"]["properties"], schemas["DetokenizeRequest"], schemas)}
## Every field of every route

"refused" is by name, with 400, unless the value asks for nothing (below); "–" is an unknown field, which is refused as well.

{matrix(document)}
## Fields within fields

A field without effect is one that clients send back beside what it was made from, that speaks to other servers (prompts are cached
anyway), or that is only a label; "refused" is any value but null, an empty list or an empty text. `name` of a message acts where
the chat template reads it, and is a label elsewhere: many programs name every message. What a message thought
(`reasoning`) is the template's to keep or to leave out: most leave out that of earlier turns.

{nested_table(document)}
## Fields that this version lacks

They are refused by name unless their value asks for nothing, since many clients send them at their defaults.

{off_table(off)}
Only in completions:

{off_table({n: v for n, v in CompletionRequest.off_values.items() if n not in off})}
Only in chat:

{off_table({n: v for n, v in ChatRequest.off_values.items() if n not in off})}"""


PAGES = {"cli.md": cli_page, "api.md": api_page, "python.md": partial(python_page, table)}


def main(args: list[str]) -> int:
    """Writes the pages, or with --check only compares them."""
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if args != ["--check"]:
                path.write_text(text)
    if args == ["--check"] and stale:
        print(f"stale: {', '.join('docs/' + name for name in stale)}; run `make docs`", file=sys.stderr)
        return 1
    print(f"docs: {len(PAGES)} generated pages, {len(stale)} {'stale' if args == ['--check'] else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
