"""Run a half as ``python -m`` would, with ranks that wait five seconds for one another instead of five minutes."""

import runpy
import sys
from datetime import timedelta

import lightning_impl.strategy
import native.process_group

for module in (native.process_group, lightning_impl.strategy):
    assert timedelta(minutes=5) == module.TIMEOUT
    module.TIMEOUT = timedelta(seconds=5)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
