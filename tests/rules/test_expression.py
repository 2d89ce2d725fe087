"""Rules as they are typed: what they mean, where a mistake is, and that nothing is ever evaluated."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import undilute as ud
from undilute import rules
from undilute.rules.expression import LONGEST, literal, parse


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("llama4(beta=0.331, floor_length=1025)", rules.Llama4(0.331, 1025)),
        ("llama4(0.331, floor_length=1025)", rules.Llama4(0.331, 1025)),
        (" top-k( 8 ) ", rules.TopK(8)),
        ("top-k(fraction=.5)", rules.TopK(fraction=0.5)),
        ("entmax15()", rules.Entmax(1.5)),
        ("ssmax(floor=none, b=-1)", rules.LogLength(b=-1.0)),
        ("ssmax(s=[0.3, -0.4])", rules.LogLength(torch.tensor([0.3, -0.4]))),
        ("sink(s=(1, 2))", rules.Sink(torch.tensor([1.0, 2.0]))),
        ("adaptive(coefficients=[1, 0.5], min_entropy=1e-1)", rules.EntropyAdaptive([1.0, 0.5], 0.1)),
        ("sa-softmax(variant='V1')", rules.SelfAdjusted("V1")),
        ("ssmax(s=0.4)|entmax(alpha=1.3)", rules.Rule(rules.LogLength(0.4), rules.Entmax(1.3))),
        ("logn |\n top-k(k=2)", rules.Rule(rules.LogN(2048), rules.TopK(2))),
    ],
)
def test_what_an_expression_means(text: str, meant: rules.Rule) -> None:
    assert rules.to_data(rules.get(text)) == rules.to_data(rules.get(meant))


def test_an_expression_works_wherever_a_rule_is_named() -> None:
    text, rule = "llama4(beta=0.5, floor_length=3)", rules.get("llama4", beta=0.5, floor_length=3)
    q, k, v = torch.randn(3, 1, 2, 7, 4, generator=torch.Generator().manual_seed(0)).unbind()
    assert torch.equal(ud.attention(q, k, v, rule=text), ud.attention(q, k, v, rule=rule))
    assert str(ud.explain(q, k, v, rule=text)) == str(ud.explain(q, k, v, rule=rule))
    assert rules.preset(text).formula == rules.preset("llama4").formula
    assert rules.to_data(rules.get("llama4(beta=0.5)", floor_length=3)) == rules.to_data(rule)


def test_a_layer_learns_what_is_not_given() -> None:
    assert list(ud.nn.Attention(8, 2, rule="ssmax(s=0.4)").rule.parameters()) == []
    names = [name for name, _ in ud.nn.Attention(8, 2, rule="ssmax | entmax").rule.named_parameters()]
    assert names == ["scale.s", "map.alpha_logit"]
    names = [name for name, _ in ud.nn.Attention(8, 2, rule="ssmax(s=0.4) | entmax").rule.named_parameters()]
    assert names == ["map.alpha_logit"]


def test_attn_implementation_takes_names_only() -> None:
    import transformers

    def config() -> transformers.GPT2Config:
        return transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1)

    model = transformers.GPT2LMHeadModel(config())
    for give in (
        lambda name: model.set_attn_implementation(name),
        lambda name: transformers.GPT2LMHeadModel._from_config(config(), attn_implementation=name),
    ):
        with pytest.raises(ud.InvalidValue, match=r"without parameters; undilute\.apply\(model, 'ssmax\(s=0\.4\)'\)"):
            give("undilute:ssmax(s=0.4)")
    with ud.apply(model, "ssmax(s=0.4)") as treated:
        assert treated.plan.summary.startswith("ssmax(s=0.4) for 2 of 2 heads")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sparsmax(alpha=2)", "unknown rule 'sparsmax': did you mean 'sparsemax'"),
        ("llama4(gamma=3)", r"rule 'llama4' got parameters \['gamma'\]: it takes beta, floor_length\."),
        ("hard(1)", r"do not fit \(too many positional arguments\): it takes none\."),
        ("llama4(0.1, beta=0.2)", r"multiple values for argument 'beta'\): it takes beta, floor_length"),
        ("entmax(alpha=nan)", "alpha = nan: must be a finite number > 0 other than 1"),
        ("entmax(alpha=1e999)", "alpha = inf: must be a finite number"),
        ("entmax(alpha=-inf)", "alpha = -inf"),
        ("ssmax(s='x')", "s = 'x': must be a finite number"),
        ("ssmax(s=[])", "must hold at least one number"),
        ("ssmax(s=[[1, 2], [3]])", "lists of equal length"),
        ("ssmax(s=1, s=2)", "gives 's' twice"),
        ("llama4(beta=)", r"cannot be read at character 13, '\)': .* as in 'llama4\(beta=0\.331, floor_length=1025\)'"),
        ("ssmax(s=1", r"at character 6, '\(s=1'"),
        ("ssmax(s=1))", r"at character 11, '\)'"),
        ("ssmax(s=1)(b=2)", "at character 6"),
        ("ssmax(s=1) # )", "at character 11"),
        ("ssmax(s=1+1)", "at character 9, '1.1"),
        ("ssmax(s=1j)", "at character 9"),
        ("ssmax(s=-'x')", "at character 9"),
        ("ssmax(**{})", "at character 9"),
        ("ssmax(*[1])", "at character 7"),
        ("ssmax(β=0, s=µ)", "at character 14, 'µ"),
        ("entmax15 | ssmax", "entmax15 has its own map; join a scale and a map, as in 'ssmax"),
        ("ssmax | as-entmax(beta=2)", r"as-entmax\(beta=2\) has its own scale"),
        ("ssmax | temperature(T=[1, 2])", "has its own scale"),
        ("ssmax | hard | hard", "joins 3 rules"),
        ("ssmax |", "unknown rule ''"),
        ("", "unknown rule ''"),
    ],
)
def test_mistakes_are_one_sentence_that_says_where(text: str, message: str) -> None:
    with pytest.raises(ud.UndiluteError, match=message) as refused:
        rules.get(text)
    assert "\n" not in str(refused.value)


HOSTILE = {
    "a call": "ssmax(s=__import__('os').system('touch hacked'))",
    "a name": "ssmax(s=open)",
    "a walrus": "ssmax(s=(x := 1))",
    "a lambda": "ssmax(s=lambda: 1)",
    "a comprehension": "ssmax(s=[x for x in (1,)])",
    "an attribute": "ssmax(s=''.__class__)",
    "a text with code": "ssmax(s=f'{1}')",
    "a condition": "ssmax(s=1if 1else 2)",
    "a call of the call": "ssmax(s=1).__class__()",
    "a name that is code": "__import__('os').system('touch hacked')",
    "brackets": f"ssmax(s={'[' * 9000}1{']' * 9000})",
    "signs": f"ssmax(s={'-' * 19_000}1)",
    "a sum": f"ssmax(s={'1+' * 9000}1)",
    "10 MB": f"ssmax(s={'9' * 10_000_000})",
    "digits": f"ssmax(s={'9' * 5000})",
    "NUL": "ssmax(s=\0)",
    "half a character": "ssmax(s=\udcff)",
    "another script": "ѕsmax(ѕ=１)",
    "a set": "ssmax(s={1})",
    "bytes": "ssmax(s=b'1')",
    "an ellipsis": "ssmax(s=...)",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_nothing_is_evaluated(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ud.UndiluteError) as refused:
        rules.get(text)
    assert len(str(refused.value)) < 500
    assert list(tmp_path.iterdir()) == []


@given(st.text(alphabet="ssmax(,)=[]'\"|1.-e #\\", max_size=40))
def test_any_text_is_a_rule_or_one_sentence(text: str) -> None:
    try:
        rules.get("ssmax(" + text)
    except ud.UndiluteError as error:
        assert "\n" not in str(error)  # noqa: PT017  # whether it raises depends on the text


def test_values_are_plain() -> None:
    (call,) = parse("x(1, -2.5, true, None, 'a, b', [1, (2,)], key=FALSE, far=-inf)")
    assert (call.name, call.values) == ("x", (1, -2.5, True, None, "a, b", (1, (2,))))
    assert call.named == {"key": False, "far": -math.inf}
    with pytest.raises(ud.InvalidValue, match=f"at most {LONGEST:,} characters"):
        parse("x" * (LONGEST + 1))


@pytest.mark.parametrize("value", [0.1, 1025.0, 1e300, -3, True, None, "it's", [0.25, 2.0], math.inf, 5e-324])
def test_what_is_written_is_read(value: object) -> None:
    (call,) = parse(f"x({literal(value)})")
    assert call.values[0] == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "softmax, llama4(beta=0.3, floor_length=9), plan.json",
            ["softmax", "llama4(beta=0.3, floor_length=9)", "plan.json"],
        ),
        ("ssmax(s=[1, 2]) | top-k(2),hard", ["ssmax(s=[1, 2]) | top-k(2)", "hard"]),
        ("sa-softmax(variant='),('), it's.json,x", ["sa-softmax(variant='),(')", "it's.json", "x"]),
        (" , softmax,,", ["softmax"]),
        ("ssmax(s=1, hard", ["ssmax(s=1, hard"]),
        ("a),b", ["a)", "b"]),
        ("", []),
    ],
)
def test_lists_are_split_outside_of_brackets(text: str, names: list[str]) -> None:
    assert rules.split_names(text) == names
