"""flit's build backend, which first makes sure that vLLM itself is not installed where this is to go."""

import sysconfig
from pathlib import Path

from flit_core import buildapi
from flit_core.buildapi import *  # noqa: F403 - a build backend's hooks


def refuse_vllm(folder: Path) -> None:
    """Raises RuntimeError if vLLM's own package lies in `folder`, a site-packages, whatever distribution brought it."""
    if (folder / "vllm/__init__.py").exists() and not any(folder.glob("octavo_vllm-*.dist-info")):
        raise RuntimeError(f"vLLM itself is installed in {folder}; octavo-vllm gives a package of the same name: pip uninstall vllm first")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):  # noqa: D103 - a hook of PEP 517
    refuse_vllm(Path(sysconfig.get_path("purelib")))
    return buildapi.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):  # noqa: D103 - a hook of PEP 660
    refuse_vllm(Path(sysconfig.get_path("purelib")))
    return buildapi.build_editable(wheel_directory, config_settings, metadata_directory)
