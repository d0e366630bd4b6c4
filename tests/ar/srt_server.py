"""A server that speaks SGLang's /generate over a real checkpoint: it decodes row by row with transformers' generate().

It stands in for `sglang serve`, which needs a GPU. Its faults are switched on by tests.
"""

import json
import threading

import torch
from transformers import GlmImageForConditionalGeneration
from werkzeug import Request, Response

from app.checkpoint import Checkpoint


class SrtServer:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._model = GlmImageForConditionalGeneration.from_pretrained(
            checkpoint.part("vision_language_encoder"), dtype=torch.float32, local_files_only=True
        ).eval()
        # transformers keeps the decode positions on the model, so calls must not interleave.
        self._lock = threading.Lock()
        self.batches: list[int] = []
        #: Called with the body before it is answered; a Response that it returns is sent instead.
        self.fault = lambda body: None
        #: Called with the list of answers; what it returns is sent instead.
        self.change = lambda answers: answers

    def generate(self, request: Request) -> Response:
        body = json.loads(request.get_data())
        self.batches.append(len(body["input_ids"]))
        if (faulty := self.fault(body)) is not None:
            return faulty
        rows = zip(body["input_ids"], body["image_data"], body["sampling_params"], strict=True)
        with self._lock:
            answers = [{"output_ids": self._row(*row), "meta_info": {}} for row in rows]
        return Response(json.dumps(self.change(answers)), content_type="application/json")

    def _row(self, ids: list[int], images: list[dict], sampling: dict) -> list[int]:
        assert sampling["ignore_eos"] is True
        torch.manual_seed(sampling["sampling_seed"])
        greedy = sampling["temperature"] == 0
        options = {} if greedy else {"temperature": sampling["temperature"], "top_p": sampling["top_p"], "top_k": 0}
        grids = torch.tensor(images[0]["image_grid_thw"])
        with torch.inference_mode():
            found = self._model.generate(
                input_ids=torch.tensor([ids]),
                attention_mask=torch.ones((1, len(ids)), dtype=torch.long),
                image_grid_thw=grids,
                images_per_sample=torch.tensor([len(grids)]),
                max_new_tokens=sampling["max_new_tokens"],
                do_sample=not greedy,
                **options,
            )
        return found[0, len(ids) :].tolist()
