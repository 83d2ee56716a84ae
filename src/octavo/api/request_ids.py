"""The ids that callers give their requests."""

from __future__ import annotations


def check_request_id(request_id: object) -> None:
    """Raises TypeError for what is no id: ids are strings, and not empty."""
    if not isinstance(request_id, str):
        raise TypeError(f"request_id must be a str, not {type(request_id).__name__}")
    if not request_id:
        raise TypeError("request_id must be a str that is not empty")


def ids_to_abort(request_id: object) -> set[str]:
    """One id, or an iterable of them. Raises TypeError for what is neither."""
    try:
        wanted = [request_id] if isinstance(request_id, str) else list(request_id)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"request_id must be a str or an iterable of them, not {type(request_id).__name__}") from None
    for each in wanted:
        check_request_id(each)
    return set(wanted)
