"""Small helpers that programs import beside the engine."""

from vllm.utils.argparse_utils import INSTEAD

from octavo.utils.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {"random_uuid": "octavo.utils.uuids"},
    refused={
        "Counter": "use itertools.count",
        "FlexibleArgumentParser": INSTEAD,
        "get_open_port": "give --port 0, and the server says which port it got",
    },
)
