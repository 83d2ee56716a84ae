"""`python -m vllm.entrypoints.openai.api_server`: the server."""

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
