"""Run a module as ``python -m`` would, and create the file ANNOUNCE.rankN once rank N's timed steps have begun.

A test that interrupts a run in the middle of training waits for these files instead of guessing how long a start takes.
"""

import os
import runpy
import sys
from pathlib import Path

from common.recorder import RunRecorder

after_step = RunRecorder.after_step


def announcing_after_step(recorder: RunRecorder, loss) -> None:
    after_step(recorder, loss)
    if recorder.steps_done == recorder.config.warmup_steps + 1:
        Path(f"{os.environ['ANNOUNCE']}.rank{recorder.launch.rank}").touch()


RunRecorder.after_step = announcing_after_step
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
