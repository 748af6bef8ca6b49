"""llama.cpp in a process of its own, called through its bindings, not over HTTP. Runs in the peer's own environment.

    python llama_cpp_contender.py MODEL.gguf THREADS

Each line of the input is a JSON object with `prompt`, token ids, and `answer`, a number of tokens; each line of the
output one with the seconds to the first token and the rate of those after it, as llama.cpp itself has measured them.
"""

from __future__ import annotations

import json
import sys

import xllamacpp


def server_of(model: str, threads: int) -> xllamacpp.Server:
    """One stream; prompts are not found again."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.cache_prompt, params.verbosity = 1024, 1, False, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(params)


def main() -> None:
    """Answer until the input ends."""
    server = server_of(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        asked = json.loads(line)
        body = {"prompt": asked["prompt"], "n_predict": asked["answer"], "temperature": 0.0, "ignore_eos": True}
        timings = server.handle_completions(body | {"cache_prompt": False})["timings"]
        if timings["predicted_n"] != asked["answer"]:
            sys.exit(f"{timings['predicted_n']} tokens, not {asked['answer']}")
        print(json.dumps({"first": timings["prompt_ms"] / 1000, "rate": timings["predicted_per_second"]}), flush=True)


if __name__ == "__main__":
    main()
