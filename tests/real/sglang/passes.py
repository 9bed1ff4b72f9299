"""Writes down what SGLang's scheduler computes, one line of JSON a pass, and for whom.

A pass is the unit in which requests wait for each other in an engine; unlike seconds, passes do not
depend on what else the machine does.
"""
import importlib.abc
import importlib.util
import json
import sys
import time

SCHEDULER = "sglang.srt.managers.scheduler"


def watch(scheduler, path):
    """Puts a pen into the method that runs a batch."""
    file = open(path, "a", buffering=1, encoding="utf-8")
    run = scheduler.run_batch

    def run_batch(self, batch, *args, **more):
        begun, cpu = time.monotonic(), time.thread_time()
        result = run(self, batch, *args, **more)
        ended = time.monotonic()
        prefill = [(r.rid, r.prefix_len, r.extend_end) for r in batch.reqs
                   ] if batch.forward_mode.is_extend() else None
        file.write(json.dumps({"at": ended, "s": ended - begun, "cpu_s": time.thread_time() - cpu,
                               "prefill": prefill, "decode": 0 if prefill else len(batch.reqs),
                               "queue": len(self.waiting_queue)}) + "\n")
        return result

    scheduler.run_batch = run_batch


class Finder(importlib.abc.MetaPathFinder):
    """Waits for the scheduler's module, once."""

    def __init__(self, path):
        self.path = path

    def find_spec(self, name, path, target=None):
        if name != SCHEDULER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            watch(module.Scheduler, self.path)
        spec.loader.exec_module = exec_module
        return spec


def record(path):
    sys.meta_path.insert(0, Finder(path))
