"""The commands of `syncbed`: what each is for, and where its code and settings are."""

from typing import NamedTuple


class Command(NamedTuple):
    """A command of `syncbed`. Places are "module:attribute", imported only when the command is used."""

    handler: str  # takes (settings, args) and returns an exit code
    settings: str  # a dictionary: what each setting is for, by name
    help: str
    example: str


COMMANDS = {
    "up": Command(
        "monitor.cluster.command:up",
        "monitor.cluster.settings:SETTINGS",
        "build what is missing and start the cluster",
        "syncbed up NODES=4 CPUS=0.5",
    ),
    "down": Command(
        "monitor.cluster.command:down",
        "monitor.cluster.settings:DOWN_SETTINGS",
        "stop the cluster and leave nothing",
        "syncbed down",
    ),
    "status": Command(
        "monitor.cluster.command:status",
        "monitor.cluster.settings:SETTINGS",
        "the nodes, their limits and the run on them",
        "syncbed status --json",
    ),
    "logs": Command(
        "monitor.cluster.command:logs",
        "monitor.cluster.settings:LOG_SETTINGS",
        "what the cluster's services printed",
        "syncbed logs",
    ),
    "images": Command(
        "monitor.engine.images:build",
        "monitor.engine.images:SETTINGS",
        "build or pull the cluster's images",
        "syncbed images CA_BUNDLE=company.pem",
    ),
    "run": Command(
        "monitor.run.command:command",
        "monitor.run.request:SETTINGS",
        "train once",
        "syncbed run SYNC=ddp MODEL=vgg11 STEPS=40",
    ),
    "where": Command(
        "monitor.machine.where:where",
        "monitor.run.request:SETTINGS",
        "say which runtime a run would use",
        "syncbed where",
    ),
    "data": Command(
        "monitor.data.command:command",
        "monitor.data.command:SETTINGS",
        "fetch, check and prepare a data set",
        "syncbed data DATA=cifar10",
    ),
    "runs": Command(
        "monitor.results.show:list_command",
        "monitor.results.show:SETTINGS",
        "list the runs",
        "syncbed runs --json",
    ),
    "show": Command(
        "monitor.results.show:show_command",
        "monitor.results.show:SETTINGS",
        "one run's summary",
        "syncbed show latest",
    ),
    "watch": Command(
        "monitor.watch.command:command",
        "monitor.watch.command:SETTINGS",
        "show the run that is on, live, in a browser",
        "syncbed watch",
    ),
    "tensorboard": Command(
        "monitor.results.tensorboard:command",
        "monitor.results.tensorboard:SETTINGS",
        "show what runs with TENSORBOARD=1 wrote",
        "syncbed tensorboard",
    ),
    "report": Command(
        "monitor.report.command:command",
        "monitor.report.command:SETTINGS",
        "write a run's report.html and report.md",
        "syncbed report latest",
    ),
    "export": Command(
        "monitor.serve.export:command",
        "monitor.serve.export:SETTINGS",
        "a run's model as a folder to take away",
        "syncbed export latest",
    ),
    "serve": Command(
        "monitor.serve.command:command",
        "monitor.serve.command:SETTINGS",
        "a run's model behind HTTP",
        "syncbed serve latest NAME=vgg",
    ),
    "serve-stop": Command(
        "monitor.serve.command:stop_command",
        "monitor.serve.command:STOP_SETTINGS",
        "stop serving a model, or all",
        "syncbed serve-stop NAME=vgg",
    ),
    "prometheus-snapshot": Command(
        "monitor.dashboards.snapshot:command",
        "monitor.dashboards.snapshot:SETTINGS",
        "keep a run's raw series before the cluster goes",
        "syncbed prometheus-snapshot latest",
    ),
    "rm": Command(
        "monitor.results.remove:command",
        "monitor.results.remove:SETTINGS",
        "remove runs",
        'syncbed rm RUN="id id"',
    ),
    "check": Command(
        "monitor.machine.check:command",
        "monitor.machine.check:SETTINGS",
        "say what is wrong with a received folder",
        "syncbed check RUN=folder",
    ),
    "sweep": Command(
        "monitor.experiments.sweep_command:command",
        "monitor.experiments.sweep_command:SETTINGS",
        "every combination of some settings",
        "syncbed sweep SYNC=ddp,ring NODES=1,2,4",
    ),
    "compare": Command(
        "monitor.experiments.compare_command:command",
        "monitor.experiments.compare_command:SETTINGS",
        "runs or a sweep side by side",
        'syncbed compare RUNS="id id" GOAL=0.8',
    ),
    "reproduce": Command(
        "monitor.experiments.reproduce:command",
        "monitor.experiments.reproduce:SETTINGS",
        "a report's runs, tables and verdicts",
        "syncbed reproduce REPORT=r1",
    ),
    "dashboards-check": Command(
        "monitor.dashboards.check:command",
        "monitor.dashboards.check:SETTINGS",
        "ask every query of every dashboard",
        "syncbed dashboards-check RUN=latest",
    ),
    "doctor": Command(
        "monitor.machine.doctor:command",
        "monitor.cluster.settings:SETTINGS",
        "check this machine, say what would fix it",
        "syncbed doctor",
    ),
    "clean": Command(
        "monitor.machine.leftovers:clean",
        "monitor.cluster.settings:SETTINGS",
        "remove what crashed runs left behind",
        "syncbed clean",
    ),
}
# Their first word may be a run's id: `syncbed show latest`.
TAKES_A_RUN = {"show", "watch", "report", "export", "serve", "prometheus-snapshot"}
