"""Every recipe of CONTRIBUTING.md, followed in a copy of the source tree: one new file, and it works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^### ([^\n]+)\n(?:(?!^### ).)*?^```python\n# (src/\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = {title: (path, code) for title, path, code in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())}

TINY = """
import torch, transformers, undilute as ud
torch.manual_seed(0)
config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=300, bos_token_id=1, eos_token_id=1)
model = transformers.GPT2LMHeadModel(config).eval()
"""

# What a contributor would try next, in a process that sees the copy alone.
TRIED = {
    "Add a rule": """
import torch, undilute as ud
assert "uniform" in ud.rules.names()
v = torch.randn(1, 2, 5, 8)
torch.testing.assert_close(ud.attention(v, v, v, rule="uniform"), v.mean(-2, keepdim=True).expand_as(v))
""",
    "Give a rule a fast route": """
import torch, undilute as ud
q, k, v = torch.randn(3, 1, 2, 400, 8, dtype=torch.float64).unbind()
assert ud.explain(q, k, v, rule="quiet").name == "flash"
found, wanted = (ud.attention(q, k, v, rule="quiet", is_causal=True, route=route) for route in ("flash", "reference"))
torch.testing.assert_close(found, wanted)
""",
    "Add a route": """
import pathlib, torch, undilute.engine
choose = pathlib.Path(undilute.engine.__file__).parent / "routes" / "choose.py"
text = choose.read_text()
assert text.count('    "reference": reference,\\n') == 1
text = text.replace('    "reference": reference,\\n', '    "reference": reference,\\n    "plain": plain,\\n')
text = text.replace("import flash, reference,", "import flash, plain, reference,")
choose.write_text(text)
import subprocess, sys
code = '''
import pytest, torch, undilute as ud
q = torch.randn(1, 2, 9, 8)
torch.testing.assert_close(ud.attention(q, q, q, route="plain"), ud.attention(q, q, q, route="reference"))
with pytest.raises(ud.InvalidValue, match="it is for up to 64 keys"):
    ud.attention(*[torch.randn(1, 1, 65, 4)] * 3, route="plain")
'''
subprocess.run([sys.executable, "-c", code], check=True)
""",
    "Add a measure": TINY
    + """
with ud.capture(model, rows=4, measures=["second_weight", "top_weight"]) as c:
    model(torch.arange(40)[None])
frame = c.frame()
assert (frame.second_weight <= frame.top_weight).all() and (frame.second_weight > 0).all()
""",
    "Add a task": """
import undilute as ud
from undilute.evaluation import tasks
from tests.evaluation.tokenizers import PROSE, tokenizer
assert "pets" in [each.name for each in tasks.known()]
found = [each for each in ud.evaluation.haystacks(tokenizer("byte-level"), PROSE, [2000], 1) if each.task == "pets"]
assert len(found) == 1 and len(found[0].questions) == 4
""",
    "Add a kind of treatment": TINY
    + """
ids = torch.arange(40)[None]
before = model(ids).logits
with ud.apply(model, "mute:1"):
    assert not torch.equal(model(ids).logits, before)
assert torch.equal(model(ids).logits, before)
found = ud.compare(model, None, torch.arange(800) % 300, ["mute:0", ["ssmax", "mute:1"]], length=128, haystacks=0)
assert "mute:0" in found.changes
""",
    "Add a scorer": TINY
    + """
from tests.evaluation.tokenizers import tokenizer
read = "One.\\n\\nA heron is a bird that wades.\\n\\nTwo herons."
for scorer, best in (("longest", "wades"), ("longest+bm25", "wades")):
    found = ud.select(model, tokenizer("words"), "Where is a heron?", read, size=8, scorer=scorer)
    assert found.scorer == scorer and best in found.passages[0].text
""",
    "Add an experiment": """
from undilute_papers.reproduction.experiment import named
result = named("uniform-rows")(n=256).run()
assert result.comparisons[0].verdict == "agrees" and "5.545 nats" in result.findings[0]
""",
    "Add a statement to the audit": """
from undilute_papers import audit
[found] = audit.run("X1")
assert found.reproduces
wrong = audit.statements("X1")[0]
assert not wrong.run(0, share=lambda n: 2 / n).reproduces
""",
}


def test_every_recipe_with_code_is_tried() -> None:
    assert set(RECIPES) == set(TRIED)


@pytest.mark.parametrize("title", TRIED)
def test_a_recipe_works(title: str, tmp_path: Path) -> None:
    path, code = RECIPES[title]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    assert not (tmp_path / path).exists()
    (tmp_path / path).write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRIED[title]],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
