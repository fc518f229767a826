"""The models that are served: names, versions, defaults, workers; remembered in the store over a restart.

The store is a folder of artefacts (serving/artefact.py), each a folder of its own. Only what is in
it can be served.
"""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from serving.artefact import About, ArtefactError, Predictor, load
from serving.batching import Batcher
from serving.errors import Refused, bad
from serving.metrics import Metrics
from trainer.files import write_whole

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")  # of a model, and of an artefact: never a path
MEMORY = "served.json"
MOST_WORKERS, MOST_BATCH, MOST_DELAY_MS = 16, 256, 10_000


@dataclass
class Version:
    """One model that is served."""

    name: str
    version: str
    url: str  # the artefact's name in the store
    about: About
    batcher: Batcher
    default: bool = True
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="milliseconds"))


def missing(name: str, version: str | None = None) -> Refused:
    of = f", version {version}" if version else ""
    return Refused(404, "ModelNotFoundException", f"Model not found: {name[:80]}{of[:80]}")


class Models:
    """All that is served.

    Its methods are of the event loop's thread; models are loaded and run in threads.
    """

    def __init__(self, store: Path, metrics: Metrics, capacity: int):
        self.store, self._metrics, self._capacity = store, metrics, capacity
        self._served: dict[str, dict[str, Version]] = {}  # by name and version
        self._pool = ThreadPoolExecutor(MOST_WORKERS, "model")
        self._lock = asyncio.Lock()  # one change at a time
        self._recalling = False

    def names(self) -> list[str]:
        return sorted(self._served)

    def versions(self, name: str) -> list[Version]:
        """Raises Refused (404)."""
        if name not in self._served:
            raise missing(name)
        return list(self._served[name].values())

    def all(self) -> list[Version]:
        return [version for name in self.names() for version in self.versions(name)]

    def find(self, name: str, version: str | None = None) -> Version:
        """The default version, or the one that is named. Raises Refused (404)."""
        versions = self._served.get(name, {})
        one = versions.get(version) if version else next((v for v in versions.values() if v.default), None)
        if one is None:
            raise missing(name, version)
        return one

    async def register(
        self, url: str, name: str, *, workers: int, most: int, delay_ms: int, version: str | None = None
    ) -> Version:
        """Serve an artefact of the store as the next version of this name, which becomes the default.

        Raises Refused: 400 for names and artefacts that cannot be, 404 for one that is not in the
        store, 409 for one that this name serves already.
        """
        if not NAME.fullmatch(url):
            raise bad(f"url={url[:80]}: the name of a model in the store; nothing is fetched from elsewhere")
        if not NAME.fullmatch(name):
            raise bad(
                f"model_name={name[:80]}: letters, digits, dots, - and _, at most 80, starting with the first two"
            )
        async with self._lock:
            served = self._served.get(name, {})
            if any(one.url == url for one in served.values()) or version in served:
                raise Refused(409, "ConflictStatusException", f"{url} is served as {name} already")
            predictor = await self._load(url)
            batcher = Batcher(
                predictor,
                self._pool,
                most=most,
                delay_seconds=delay_ms / 1000,
                capacity=self._capacity,
                observe=lambda images, seconds: self._metrics.computed(name, images, seconds),
            )
            number = max((int(float(v)) for v in served), default=0) + 1
            one = Version(name, version or f"{number}.0", url, predictor.about, batcher)
            batcher.scale(workers)
            for other in served.values():
                other.default = False
            self._served.setdefault(name, {})[one.version] = one
            self._remember()
            return one

    async def _load(self, url: str) -> Predictor:
        """The artefact of the store.

        Raises Refused: 404 when there is none of this name, 400 when it is damaged.
        """
        if not (self.store / url).is_dir():
            have = ", ".join(sorted(folder.name for folder in self.store.glob("[!.]*"))[:9]) or "nothing"
            raise Refused(404, "ModelNotFoundException", f"Model not found in the store: {url}; it has {have}")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, load, self.store / url)
        except ArtefactError as error:
            raise bad(str(error)) from None

    async def unregister(self, name: str, version: str | None = None) -> None:
        """Stop serving a version, or all of a name.

        Raises Refused: 404; 403 for a default beside other versions.
        """
        async with self._lock:
            versions = [self.find(name, version)] if version else self.versions(name)
            served = self._served[name]
            if len(versions) < len(served) and versions[0].default:
                message = f"Cannot remove default version for model {name}: another must be made the default first"
                raise Refused(403, "InvalidModelVersionException", message)
            for one in versions:
                del served[one.version]
                one.batcher.scale(0)
            if not served:
                del self._served[name]
            self._remember()

    def set_default(self, name: str, version: str) -> None:
        """Raises Refused (404)."""
        default = self.find(name, version)
        for one in self.versions(name):
            one.default = one is default
        self._remember()

    def scale(self, name: str, version: str | None, workers: int) -> Version:
        """Raises Refused (404)."""
        one = self.find(name, version)
        one.batcher.scale(workers)
        self._remember()
        return one

    def _remember(self) -> None:
        if self._recalling:  # killed now, it would have forgotten those that come next
            return
        entries = [
            {
                "url": one.url,
                "name": one.name,
                "version": one.version,
                "default": one.default,
                "workers": one.batcher.workers,
                "most": one.batcher.most,
                "delay_ms": round(one.batcher.delay_seconds * 1000),
            }
            for one in self.all()
        ]
        try:
            write_whole(self.store / MEMORY, json.dumps(entries))
        except OSError as error:  # it is served all the same
            print(f"{self.store / MEMORY}: cannot be written ({error}); a restart will not know", flush=True)

    async def recall(self, say=print) -> None:
        """Serve again what was served before a restart; what cannot be is told, and forgotten with the next change."""
        try:
            entries = json.loads((self.store / MEMORY).read_text())
            registrations = [(entry.pop("default"), entry) for entry in entries]
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            say(f"{self.store / MEMORY}: cannot be read ({error}); nothing is served")
            return
        self._recalling, defaults = True, []
        for default, arguments in registrations:
            try:
                version = await self.register(**arguments)
            except (Refused, TypeError, ValueError) as error:
                say(f"{arguments.get('name')} is not served any more: {error}")
                continue
            if default:
                defaults.append(version)
        for one in defaults:
            self.set_default(one.name, one.version)
        self._recalling = False
