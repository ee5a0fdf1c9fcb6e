"""Run a module as ``python -m`` would, and let one thing go wrong at a known moment.

INJECT holds it as JSON: ``what`` (delay, out of memory, not a number, drift, raise, or the name of a signal that the
rank sends itself), ``at`` (an optimizer step counted from 1; "setup"; "final", before the reductions after the last
step; "writing", before a whole file gets its name), ``ranks`` and ``seconds``. INJECTED names a file that keeps the
time at which it happened on a rank.
"""

import json
import math
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from common import initialization
from common.model import SyntheticTransformer
from common.recorder import RunRecorder

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.50 GiB is "
    "free. Including non-PyTorch memory, this process has 138.30 GiB memory in use.\nSee documentation for more."
)
RANK = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
fill_parameters, forward, cross_entropy = initialization.fill_parameters, SyntheticTransformer.forward, F.cross_entropy
finish = RunRecorder.finish
forwards = 0
FAILURES = ("out of memory", "raise", "SIGKILL", "SIGTERM", "SIGINT")


def fail() -> None:
    Path(f"{os.environ['INJECTED']}.rank{RANK}").write_text(str(time.time()))
    if injection["what"] == "out of memory":
        raise torch.OutOfMemoryError(MESSAGE)
    if injection["what"] == "raise":
        raise ValueError("a cable was pulled\nand more that nobody needs to know")
    os.kill(os.getpid(), getattr(signal, injection["what"]))


def failing_at(moment, function):
    """Return the function, before which this rank fails if that is the moment."""

    def fail_first(*arguments, **options):
        if injection["at"] == moment:
            fail()
        return function(*arguments, **options)

    return fail_first


def forward_in_which_something_happens(model, tokens):
    global forwards
    forwards += 1
    if forwards == injection["at"]:
        if injection["what"] == "delay":
            time.sleep(injection["seconds"])
        elif injection["what"] in FAILURES:
            fail()
    return forward(model, tokens)


def loss_that_is_not_a_number(logits, labels):
    loss = cross_entropy(logits, labels)
    return loss * math.nan if forwards == injection["at"] else loss


def finish_with_another_weight(recorder):
    with torch.no_grad():
        next(recorder.model.parameters())[0, 0] += 1
    return finish(recorder)


injection = json.loads(os.environ["INJECT"])
if RANK in injection["ranks"]:
    SyntheticTransformer.forward = forward_in_which_something_happens
    if injection["what"] in FAILURES:
        initialization.fill_parameters = failing_at("setup", fill_parameters)
        RunRecorder.finish = failing_at("final", finish)
        os.fsync = failing_at("writing", os.fsync)
    elif injection["what"] == "not a number":
        F.cross_entropy = loss_that_is_not_a_number
    elif injection["what"] == "drift":
        RunRecorder.finish = finish_with_another_weight
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
