"""lm-eval's `local-completions` on a task of one's own; prints its score and each choice's log-likelihood as JSON.

lm_eval_scores.py FOLDER_OF_THE_TASK FOLDER_OF_THE_TOKENIZER
"""

import json

# docs: begin
import os
import sys

import lm_eval
from lm_eval.tasks import TaskManager

task_folder, tokenizer = sys.argv[1:]
os.environ["OPENAI_API_KEY"] = os.environ["OCTAVO_API_KEY"]
results = lm_eval.simple_evaluate(
    model="local-completions",
    model_args={
        "model": os.environ["OCTAVO_MODEL"],
        "base_url": os.environ["OCTAVO_URL"] + "/completions",  # http://HOST:8000/v1/completions
        "tokenizer_backend": "huggingface",
        "tokenizer": tokenizer,  # the checkpoint's folder, or its name on the hub
        "max_length": 1024,
        "max_retries": 1,
    },
    batch_size=4,  # prompts of a request, up to 16
    tasks=["capitals"],
    task_manager=TaskManager(include_path=task_folder, include_defaults=False),
    log_samples=True,
    bootstrap_iters=0,
)
# docs: end

samples = sorted(results["samples"]["capitals"], key=lambda sample: sample["doc_id"])
seen = {
    "accuracy": results["results"]["capitals"]["acc,none"],
    "items": [
        [{"asked": list(asked), "said": said} for asked, said in zip(*pair, strict=True)]
        for pair in ((sample["arguments"], sample["filtered_resps"]) for sample in samples)
    ],
}
print(json.dumps(seen))
