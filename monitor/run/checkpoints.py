"""A run's checkpoints on their way from the nodes into its folder, beside the event stream and in order."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from monitor.results.parts import CheckpointEntry
from monitor.runtime.base import Job, Runtime
from trainer import events
from trainer.checkpoint_folder import COMPLETE, FOLDER
from trainer.files import remove_folder


class CheckpointFetcher:
    """Fetches each checkpoint once its rank has written it."""

    def __init__(self, runtime: Runtime, job: Job):
        self._runtime, self._job = runtime, job
        self._courier = ThreadPoolExecutor(1)
        self._fetches: list[tuple[events.Checkpoint, Future[str]]] = []

    def fetch(self, checkpoint: events.Checkpoint) -> None:
        """Begin to fetch it. Returns at once."""
        self._fetches.append((checkpoint, self._courier.submit(self._runtime.fetch, self._job, checkpoint.path)))

    def check_disk(self) -> None:
        """Raise OSError when a checkpoint found no room: the later ones of this run will do no better."""
        for checkpoint, fetch in self._fetches:
            if fetch.done() and isinstance(error := fetch.exception(), OSError):
                raise OSError(error.errno, f"checkpoint of step {checkpoint.step}: {error.strerror or error}")

    def wait(self) -> None:
        """Wait for those that are on their way; remove one that was being written when the ranks ended."""
        wait([fetch for _, fetch in self._fetches])
        checkpoints = self._job.run_folder / FOLDER
        for folder in () if checkpoints.is_symlink() else checkpoints.glob("step-*"):
            if not (folder / COMPLETE).exists():
                remove_folder(folder, may_stay=True)

    def close(self) -> None:
        """As `wait`; no more will come."""
        self.wait()
        self._courier.shutdown()

    def facts(self, warn: Callable[[str], None]) -> tuple[list[CheckpointEntry], tuple[int, OSError] | None]:
        """For results, after `close`: those that are there, by step, and the step and error of the first that found no
        room. What else went wrong is passed to `warn`.
        """
        facts: dict[int, CheckpointEntry] = {}  # by step: one may have been done again
        disk_error = None
        for checkpoint, fetch in self._fetches:
            error = fetch.exception()
            if isinstance(error, OSError):
                disk_error = disk_error or (checkpoint.step, error)
            elif error:
                warn(f"the checkpoint of step {checkpoint.step} could not be fetched: {error}")
            else:
                facts[checkpoint.step] = CheckpointEntry(
                    step=checkpoint.step, path=fetch.result(), bytes=checkpoint.bytes, seconds=checkpoint.seconds
                )
        return [facts[step] for step in sorted(facts)], disk_error
