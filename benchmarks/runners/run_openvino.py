"""OpenVINO GenAI through ContinuousBatchingPipeline, the scheduler behind its LLMPipeline and model server, with an 8-bit KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from measuring import Request, main


class OpenVINO:
    """`options["scheduler"]` sets fields of SchedulerConfig, `options["properties"]` those of the device."""

    def __init__(self, task: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        for name, value in task["options"]["scheduler"].items():
            setattr(scheduler, name, value)
        properties = {"INFERENCE_NUM_THREADS": task["threads"], **task["options"]["properties"]}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(task["model"], scheduler, "CPU", properties)

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """See measuring.Engine."""
        prompts = [openvino.Tensor(np.array([prompt], np.int64)) for prompt, _ in requests]
        configs = []
        for _, count in requests:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = count
            config.ignore_eos = True
            config.do_sample = False
            configs.append(config)
        results = self._pipeline.generate(prompts, configs)
        return [list(result.m_generation_ids[0]) for result in results]


if __name__ == "__main__":
    main(OpenVINO, ["openvino-genai", "openvino"])
