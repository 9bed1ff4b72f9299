"""Python's own hook, run in every process of an SGLang; `start` puts this folder in the way.

Its attention on the CPU (torch_native) gives the cached part of a prompt rows that nobody has
written, and computes them too. Where that memory happens to read as denormal numbers, a pass takes
up to eighty times as long and everybody in the engine waits: they are taken for zero here.
SGLANG_PASSES=FILE has the scheduler write down its passes (passes.py).
"""
import os
import sys

if any("spawn_main" in word for word in sys.orig_argv):
    import torch

    torch.set_flush_denormal(True)
    if os.environ.get("SGLANG_PASSES"):
        import passes

        passes.record(os.environ["SGLANG_PASSES"])
