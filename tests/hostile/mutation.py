"""Mutants of models: bytes that were hit, messages that no exporter writes, wild data files.

A mutant is a set of files: what lies in the folder from which a model is read. Mutations of
messages go deep, while the parser refuses most mutations of bytes; several are applied in a row.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import onnx
from google.protobuf.message import DecodeError
from google.protobuf.message import Error as MessageError

from tests.hostile.data_mutations import externalise
from tests.hostile.graph_mutations import (
    call_functions,
    chain,
    change_function,
    change_header,
    change_value,
    insert_allocation,
    insert_loop,
    nest,
)
from tests.hostile.node_mutations import (
    attribute_of_another_type,
    lose_attribute,
    move_nodes,
    other_operator,
    rename,
    rewire,
    wild_number,
)
from tests.hostile.parts import Mutant
from tests.hostile.tensor_mutations import (
    claim_dims,
    claim_type,
    cut_data,
    move_tensor,
    resize_honestly,
    spoil_numbers,
)

__all__ = ["MODEL", "Mutant", "byte_mutant", "message_mutant", "mutant"]

MODEL = "m.onnx"


def mutant(seeds: Sequence[bytes], rng: random.Random) -> Mutant:
    """A mutant of one of the serialized models, by bytes (one in four) or by messages."""
    raw = rng.choice(seeds)
    if rng.random() < 0.25:
        return Mutant({MODEL: byte_mutant(raw, rng, rng.choice(seeds))}, done=["bytes"])
    return message_mutant(raw, rng)


def byte_mutant(raw: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """Change bytes: one to six edits, or a splice with another model."""
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 6))):
        # Half of the changes hit the first bytes, which hold the structure of a large model.
        at = rng.randrange(len(changed) if rng.random() < 0.5 else min(len(changed), 700) or 1)
        kind, size = rng.randrange(7), rng.randrange(1, 5)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[at : at + size]
        elif kind == 3:
            changed[at:at] = rng.randbytes(size)
        elif kind == 4:
            stop = min(len(changed), at + rng.randrange(1, 200))
            changed[at:at] = changed[at:stop]
        elif kind == 5:
            del changed[at:]
        elif other:
            changed[at:] = other[rng.randrange(len(other)) :]
        if not changed:
            break
    return bytes(changed)


def message_mutant(raw: bytes, rng: random.Random) -> Mutant:
    """Change the model as a protobuf message: one to four mutations, then perhaps external data."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    except DecodeError:
        return Mutant({MODEL: byte_mutant(raw, rng)}, done=["bytes"])
    made = Mutant({})
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        mutation = rng.choice(_MUTATIONS)
        try:
            mutation(model, rng)
        except (IndexError, ValueError, TypeError, MessageError):
            continue  # this model has nothing of the kind
        made.done.append(mutation.__name__.strip("_"))
    if rng.random() < 0.25:
        externalise(model, rng, made)
    made.files[MODEL] = model.SerializeToString()
    return made


_Mutation = Callable[[onnx.ModelProto, random.Random], None]


_MUTATIONS: tuple[_Mutation, ...] = (
    attribute_of_another_type,
    chain,
    change_function,
    claim_dims,
    claim_type,
    cut_data,
    call_functions,
    change_header,
    insert_allocation,
    insert_loop,
    lose_attribute,
    lose_attribute,
    move_nodes,
    move_nodes,
    move_tensor,
    nest,
    other_operator,
    other_operator,
    rename,
    resize_honestly,
    rewire,
    rewire,
    spoil_numbers,
    spoil_numbers,
    change_value,
    change_value,
    wild_number,
    wild_number,
)
