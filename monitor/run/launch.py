"""Carry out a request: find its runtime, check its nodes, prepare its data, follow the run to its end."""

from contextlib import nullcontext

from rich.console import Console

from monitor.conditions import faults
from monitor.conditions.conditions import Conditions
from monitor.interrupt import Stop
from monitor.results.result import Result
from monitor.run import resume
from monitor.run.plan import make_plan
from monitor.run.recorder import Recorder
from monitor.run.request import Request
from monitor.runtime import choice
from monitor.watch.door import door
from trainer.spec import DEFAULT_BATCH


def run(request: Request, console: Console, began: float, stop: Stop) -> Result:
    """Train once and return the result, which is in its folder by then. `began`: Unix seconds of the command.

    Raises UserError, RunFailed or SpecError.
    """
    source = None if request.resume is None else resume.find(request.resume, request.runs)
    runtime = choice.choose(request.place)
    spec = source.spec_of(request.spec) if source else request.new_spec(runtime.default_nodes)
    runtime.preflight(spec, Conditions.of(request.conditions, spec, runtime.capabilities))
    console.print(runtime.note(spec), highlight=False)
    if not source and "BATCH" not in request.spec and spec.batch != DEFAULT_BATCH:
        reason = f"{DEFAULT_BATCH} does not divide over {spec.workers} workers"
        console.print(f"BATCH={spec.batch}: {reason}", highlight=False)
    plan = make_plan(request, spec, source, console)
    faults.in_time(runtime.faults, plan.steps_before, plan.last_step)
    runtime.push_data(plan.prepared.path)
    stop.running()
    recorder = Recorder(runtime, plan, console, began, stop)
    if url := runtime.watch(recorder.job.run_id):
        console.print(f"watch: {url}", highlight=False)
    with door(recorder.page_facts) if request.pages else nullcontext() as page:
        if page:
            console.print(f"live page: {page}", highlight=False)
        return recorder.follow()
