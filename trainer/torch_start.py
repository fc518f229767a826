"""Import torch without its compiler.

The first optimizer or DistributedDataParallel that is built imports torch._dynamo, 900 modules, as
long again as torch itself, only to mark some of its functions as not to be compiled. Nothing is
compiled here, and start-up time counts where ranks share cores, so a stand-in answers those marks.
Any other attribute loads the real module.
"""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import torch

NAME = "torch._dynamo"


class _StandIn(ModuleType):
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")  # asked for by DistributedDataParallel

    @staticmethod
    def disable(fn=None, recursive=True, **_):
        """Mark as not to be compiled: what is never compiled needs no mark."""
        return fn if fn is not None else lambda f: f

    @staticmethod
    def graph_break(*_, **__):
        """A point where compiled code would end."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME], torch._dynamo
        return getattr(importlib.import_module(NAME), name)


def without_compiler() -> None:
    """Put the stand-in in place, unless the compiler is there already.

    Call it after init_process_group, which clears the compiler's caches if it finds it imported.
    """
    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = _StandIn(NAME)
