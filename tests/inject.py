"""Run a module as ``python -m`` would, and let one thing go wrong at a known moment.

INJECT holds it as JSON: ``what`` (delay, out of memory, not a number, drift), ``at`` (an optimizer step counted from 1,
or "setup"), ``ranks`` and ``seconds``. INJECTED names a file that keeps the time at which a rank ran out of memory.
"""

import json
import math
import os
import runpy
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


def run_out_of_memory() -> None:
    Path(f"{os.environ['INJECTED']}.rank{RANK}").write_text(str(time.time()))
    raise torch.OutOfMemoryError(MESSAGE)


def fill_parameters_in_little_memory(model, seed):
    if injection["at"] == "setup":
        run_out_of_memory()
    fill_parameters(model, seed)


def forward_in_which_something_happens(model, tokens):
    global forwards
    forwards += 1
    if forwards == injection["at"]:
        if injection["what"] == "delay":
            time.sleep(injection["seconds"])
        elif injection["what"] == "out of memory":
            run_out_of_memory()
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
    if injection["what"] == "out of memory":
        initialization.fill_parameters = fill_parameters_in_little_memory
    elif injection["what"] == "not a number":
        F.cross_entropy = loss_that_is_not_a_number
    elif injection["what"] == "drift":
        RunRecorder.finish = finish_with_another_weight
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
