"""`python -m vllm.entrypoints.api_server`: the server, whose `POST /generate` is that of vLLM's old one."""

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
