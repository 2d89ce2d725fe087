"""What does a stranger need to know about an exported model?  What was changed and measured, and how to run it."""

from __future__ import annotations

import json
from typing import Any

from undilute.exporting.result import Exported, counted, rows
from undilute.treatment.plan import Plan


def card(name: str, plan: Plan, made: Exported) -> str:
    """The model card in Markdown.

    Parameters
    ----------
    name : of the model that was treated
    plan : what was exported
    made : what became of it
    """
    record: Any = plan.made.get("tuned")
    measured = record.get("sentences", []) if isinstance(record, dict) else []
    parts = [
        _front(name),
        f"# {_plain(name)}, undiluted",
        "The attention of some heads is multiplied by constants that Undilute found. They are folded into the weights, "
        f"so any engine runs them. Nothing else was changed: {counted(made.explanation)}.",
        _table(rows(made.explanation)),
        *(f"- {_plain(each)}" for each in made.sentences),
    ]
    if measured:
        parts += ["## Measured", "\n".join(f"- {_plain(each)}" for each in measured)]
    parts += ["## Use", USE]
    return "\n\n".join(parts) + "\n"


USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this folder")
tokenizer = AutoTokenizer.from_pretrained("this folder")
```

vLLM serves the folder as it is (`vllm serve FOLDER`); llama.cpp's `convert_hf_to_gguf.py` makes a GGUF file of it. Do
not apply `exported_plan.json` to this model: it is in the weights already."""


def _table(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    lines = [list(found[0]), ["---"] * len(found[0]), *([_plain(str(each)) for each in row.values()] for row in found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _front(name: str) -> str:
    """What the hub reads."""
    entries = ["library_name: transformers", "tags:", "- undilute", "- long-context"]
    if "/" in name and not name.startswith((".", "/")):
        entries.insert(0, f"base_model: {json.dumps(name)}")
    return "\n".join(["---", *entries, "---"])


def _plain(text: str) -> str:
    """Text as Markdown shows it, whatever it holds."""
    return text.replace("<", "&lt;").replace("|", "\\|")
