"""A vLLM server without vLLM: the endpoints that the sampler uses, answered with the HF sampler's numbers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler

KNOWN = {
    "model", "prompt", "seed", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "ignore_eos", "stop_token_ids", "logprobs", "return_token_ids",
}  # fmt: skip


class FakeServer(ThreadingHTTPServer):
    """Serves a model of the policy's shape; its weights come from folders only.

    Attributes:
        log: Path of every request, in order.
        failing: How many of the next requests (health not counted) get status 500.
        delay: Seconds before a completion is answered.
        well: What /health says.
        resets: What /reset_prefix_cache says.
        about: Overrides of what the server says about itself.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, policy: LanguageModel, **about: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.twin = policy.frozen_copy()
        with torch.no_grad():
            for parameter in self.twin.parameters():
                parameter.zero_()
        self.log: list[str] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.failing, self.delay, self.well, self.resets = 0, 0.0, True, True
        self.about = {"version": "0.32.0", "logprobs_mode": "processed_logprobs", "max_model_len": 128}
        self.about |= {"dtype": "torch.float32", "dev": True} | about
        self.lock = threading.Lock()  # torch models are shared by the handlers' threads
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def kill(self) -> None:
        """Stop answering: new connections are refused."""
        self.shutdown()
        self.server_close()

    def reload(self, folder: str) -> None:
        found: dict[str, torch.Tensor] = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            found |= load_file(file)
        assert found, f"no weights in {folder}"
        state = self.twin.model.state_dict()
        assert set(found) == set(state)  # a tied lm_head too
        self.twin.model.load_state_dict(found)

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        assert set(body) == KNOWN
        assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (0, 0.0, 1.0)
        assert body["ignore_eos"]
        assert body["stop_token_ids"] == sorted(self.twin.eos_ids)
        sampler = HFSampler()
        sampler.setup(self.twin)
        cold = body["temperature"] == 0
        params = SamplingParams(1, body["max_tokens"], 1e-4 if cold else body["temperature"], body["top_p"])
        with self.lock:
            out = sampler.sample([body["prompt"]], params, [body["seed"]])
        mask = out.mask[0]
        choice = {
            "token_ids": out.ids[0][mask].tolist(),
            "logprobs": {"token_logprobs": out.logprobs[0][mask].tolist()},
            "finish_reason": "stop" if out.finished[0] else "length",
        }
        return {"choices": [choice]}


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        about = self.server.about
        if path == "/health":
            return self._say(200 if self.server.well else 503, None)
        if path == "/version":
            return self._say(200, {"version": about["version"]})
        if path == "/v1/models":
            return self._say(200, {"data": [{"id": "fake", "max_model_len": about["max_model_len"]}]})
        if path == "/server_info" and about["dev"]:
            config = {"logprobs_mode": about["logprobs_mode"], "dtype": about["dtype"]}
            return self._say(200, {"vllm_config": {"model_config": config}})
        return self._say(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        server.log.append(self.path)
        server.bodies.append(body)
        if server.failing > 0:
            server.failing -= 1
            return self._say(500, {"error": {"message": "EngineCore had a bad day"}})
        if self.path == "/v1/completions":
            if len(body["prompt"]) + body["max_tokens"] > server.about["max_model_len"]:
                return self._say(400, {"error": {"message": "This model's maximum context length is less."}})
            time.sleep(server.delay)
            return self._say(200, server.complete(body))
        if self.path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            with server.lock:
                server.reload(body["kwargs"]["weights_path"])
            return self._say(200, {"results": [None]})
        if self.path == "/reset_prefix_cache":
            return self._say(200, {"success": server.resets})
        return self._say(404, {"detail": "Not Found"})

    def _say(self, status: int, value: object) -> None:
        content = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
