"""The parser of vLLM's command line."""

from octavo.utils.lazy import lazy_names

INSTEAD = "use argparse.ArgumentParser, and give what it read to EngineArgs as keywords; vllm serve has the flags themselves"

__getattr__, __dir__ = lazy_names(__name__, {}, refused={"FlexibleArgumentParser": INSTEAD})
