"""Chat templates as Mistral's own library writes them, one for each way of its models to write calls; prints JSON."""

import json

from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
from mistral_common.tokens.tokenizers.base import TokenizerVersion

KINDS = {"v3_spm": True, "v3": False, "v7": False, "v11": False, "v13": False}
PLAIN = dict.fromkeys(("image_support", "audio_support", "thinking_support", "plain_thinking_support"), False)
UNSET = dict.fromkeys(
    ("default_system_prompt", "model_settings_fields", "reasoning_effort_values", "reasoning_effort_default")
)


def template(kind: str, *, spm: bool) -> str:
    version = TokenizerVersion(kind.partition("_")[0])
    return generate_chat_template(spm, version, use_special_token_variables=True, **PLAIN, **UNSET)


print(json.dumps({f"mistral_{kind}": template(kind, spm=spm) for kind, spm in KINDS.items()}))
