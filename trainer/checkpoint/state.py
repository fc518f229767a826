"""What a rank is made of between two steps: everything it would need to go on exactly from there, and nothing else.

The order of the data needs no place here: it is drawn from the seed and the step's number alone.
"""

import hashlib
import json

import torch

from trainer.flat import flatten, unflatten
from trainer.wire.collectives import Wire

MODEL_PART, OPTIMIZER_PART, SYNC_PART = "model/", "optimizer/", "sync/"


def capture(run) -> dict:
    """The state of a trainer.run.loop.Run, flat: names to tensors (not copies) and plain values."""
    state = {MODEL_PART + name: value for name, value in run.model.state_dict().items()}
    for i, values in run.optimizer.state_dict()["state"].items():
        state |= {f"{OPTIMIZER_PART}{i}/{name}": value for name, value in values.items()}
    state |= {SYNC_PART + name: value for name, value in run.sync.state().items()}
    state["seen"] = torch.from_numpy(run.batches.seen)
    state["random"] = torch.get_rng_state()
    state["synchronisations"] = run.sync.synchronisations
    return state


def restore(run, state: dict) -> None:
    """Put a Run that was just built where `capture` found another.

    The random state comes last: nothing draws after.
    """
    weights = {name.removeprefix(MODEL_PART): v for name, v in state.items() if name.startswith(MODEL_PART)}
    run.model.load_state_dict(weights)
    optimizer = run.optimizer.state_dict()
    for name, value in state.items():
        if name.startswith(OPTIMIZER_PART):
            i, key = name.removeprefix(OPTIMIZER_PART).split("/", 1)
            optimizer["state"].setdefault(int(i), {})[key] = value
    run.optimizer.load_state_dict(optimizer)
    run.sync.load_state({name.removeprefix(SYNC_PART): v for name, v in state.items() if name.startswith(SYNC_PART)})
    run.sync.synchronisations = state["synchronisations"]
    run.batches.seen[:] = state["seen"].numpy()
    torch.set_rng_state(state["random"].clone())


def merge_states(model, wire: Wire) -> dict:
    """The model's state as one for all ranks; every rank gets the same.

    The model itself is not touched.

    What all ranks hold alike stays to the last bit. Of what differs, floating-point values become
    their mean over the ranks, in one all-reduce: running statistics of batch norm, which each rank
    takes from its own samples, and the weights of replicas that are apart between two
    synchronisations. Training never reads the result.
    """
    state = model.state_dict()
    if wire.world_size == 1:
        return state
    digests_of_ranks = wire.party.tell_all("model", json.dumps([digest(value) for value in state.values()]))
    alike = [len(set(digests)) == 1 for digests in zip(*map(json.loads, digests_of_ranks), strict=True)]
    apart = [n for (n, v), equal in zip(state.items(), alike, strict=True) if not equal and v.is_floating_point()]
    if not apart:
        return state
    means = {name: torch.empty_like(state[name]) for name in apart}
    total = wire.all_reduce(flatten(state[name] for name in apart))
    unflatten(total / wire.world_size, means.values())
    state.update(means)
    return state


def digest(value) -> str:
    """Equal for equal values, to the last bit. 16 hexadecimal digits of SHA-256."""
    if not torch.is_tensor(value):
        return repr(value)
    sha256 = hashlib.sha256(f"{value.dtype} {tuple(value.shape)}".encode())
    sha256.update(value.detach().flatten().view(torch.uint8).numpy().data)  # in logical order in any memory format
    return sha256.hexdigest()[:16]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the last bit, for tensors of one shape and type. torch.equal would not tell the sign of a zero."""
    return one.data_ptr() == other.data_ptr() or digest(one) == digest(other)
