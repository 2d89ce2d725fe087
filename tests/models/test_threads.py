"""Threads that treat, watch and run models at once get what each would get alone."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import AttentionInterface

import undilute as ud
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue
from undilute.models import capture
from undilute.models.watch import _standing

THREADS, SECONDS = 6, 1.5


@pytest.fixture(autouse=True)
def hasty_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(*tasks: Callable[[], None]) -> None:
    """Each task again and again, in a thread of its own; the first error is raised."""
    end = time.monotonic() + SECONDS

    def repeat(task: Callable[[], None]) -> None:
        while time.monotonic() < end:
            task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        for each in [pool.submit(repeat, task) for task in tasks]:
            each.result()


def test_watchers_of_different_models_come_and_go_at_once() -> None:
    models = [random_model("gpt2") for _ in range(THREADS)]
    ids = tokens(1, 4)

    def watch(model: Any) -> None:
        with capture(model, measures=[]), capture(model, measures=[]):
            pass

    def treat(model: Any) -> None:
        with ud.apply(model, "ssmax"):
            model(ids)

    with torch.no_grad():
        at_once(
            *(lambda model=each: watch(model) for each in models[2:]), *(lambda m=each: treat(m) for each in models[:2])
        )
    assert all(each.config._attn_implementation == "sdpa" for each in models)


def test_a_treated_model_runs_in_many_threads() -> None:
    """A thread that found another's name in the configuration would attend by softmax."""
    model, ids = random_model("llama"), tokens(1, 4)
    with torch.no_grad(), ud.apply(model, "hard"):
        expected = model(ids)[0]

        def run() -> None:
            with torch.no_grad():
                assert torch.equal(model(ids)[0], expected)

        at_once(*[run] * THREADS)


def test_a_model_runs_while_another_thread_comes_to_watch_it_and_leaves() -> None:
    model, ids = random_model("llama"), tokens(1, 4)
    with torch.no_grad():
        expected = model(ids)[0]

    def run() -> None:
        with torch.no_grad():
            assert torch.equal(model(ids)[0], expected)

    def watch() -> None:
        with capture(model, measures=[]):
            time.sleep(1e-4)

    at_once(run, run, watch)
    assert model.config._attn_implementation == "sdpa"


def test_a_hook_that_is_just_being_added_is_called_without_names() -> None:
    """torch notes that a hook wants them after it has added it, and forgets it before it removes it."""
    model, ids = random_model("llama"), tokens(1, 4)
    with capture(model), torch.no_grad():
        for module in model.modules():
            module._forward_pre_hooks_with_kwargs.clear()
        model(ids)


@pytest.mark.parametrize(
    "use", [lambda model: capture(model).__enter__(), lambda model: ud.apply(model, "ssmax"), ud.Plan.of]
)
def test_a_model_is_watched_by_one_thread_at_a_time(use: Callable[[Any], object]) -> None:
    model = random_model("llama")
    twin = copy.deepcopy(model)
    with capture(model), ThreadPoolExecutor(1) as pool:
        with pytest.raises(InvalidValue, match="another thread is watching this LlamaForCausalLM: only one can"):
            pool.submit(use, model).result()
        pool.submit(ud.Plan.of, twin).result()
    assert model.config._attn_implementation == "sdpa"
    pool = ThreadPoolExecutor(1)
    pool.submit(ud.Plan.of, model).result()
    pool.shutdown()


@pytest.mark.parametrize("x", ["values", "input"])
def test_passes_of_any_thread_are_seen(x: Any) -> None:
    model, threads = random_model("llama"), []
    with torch.no_grad():
        for number in (6, 9):
            threads.append(threading.Thread(target=lambda n=number: model(tokens(1, n))))
        with capture(model, x=x) as c:
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    assert [len(layer.n) for layer in c.layers] == [15, 15]


def test_a_copy_of_a_watched_model_is_not_watched_and_runs() -> None:
    model, ids = random_model("llama"), tokens(1, 8)
    with torch.no_grad():
        expected = model(ids)[0]
        with capture(model) as c:
            twin = copy.deepcopy(model)
            assert torch.equal(twin(ids)[0], expected)
            assert not c.layers
        with capture(random_model("gpt2")) as other:
            assert torch.equal(twin(ids)[0], expected)
            assert not other.layers
        with capture(twin) as c:
            twin(ids)
        assert len(c.layers) == 2
    assert twin.config._attn_implementation == "sdpa"


def test_names_are_used_again() -> None:
    model = random_model("llama")
    with capture(model):
        pass
    before = len(AttentionInterface._global_mapping)
    for _ in range(5):
        with capture(model):
            pass
    assert len(AttentionInterface._global_mapping) == before
    assert not _standing
