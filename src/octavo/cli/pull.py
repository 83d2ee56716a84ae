"""`octavo pull`: fetch a model before it is needed."""

from __future__ import annotations

import sys
from typing import Annotated

from octavo.cli import flags
from octavo.cli.declare import Argument
from octavo.cli.run import command


@command
def pull(
    model: Annotated[str, Argument(metavar="MODEL", help=flags.MODEL_HELP)],
    revision: flags.Revision = None,
    download_dir: flags.DownloadDir = None,
) -> None:
    """Fetch a model into the cache and print where it lies. Does nothing more when it is there already."""
    from octavo.loading.progress import progress_for
    from octavo.loading.resolve import resolve_model

    path = resolve_model(model, revision=revision, download_dir=download_dir, progress=progress_for())
    sys.stdout.write(f"{path}\n")
