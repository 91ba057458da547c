"""The rows of our own domain, including norms, which recognition handles."""

from collections.abc import Iterator

from onnxfold.operators.functions import DOMAIN, SIGNATURES, Output
from onnxfold.operators.row import Family, Operator, Shapes


def _own() -> Iterator[Operator]:
    for name, signature in SIGNATURES.items():
        if name == "Center":
            law = (
                "mean(x - mean x) = 0; (x + s) - mean(x + s) = x - mean x; P of fewer axes commutes"
            )
            yield Operator(name, DOMAIN, Family.CENTRING, law, shape=Shapes.SAME)
        elif signature.residual and signature.output is Output.NORM:
            yield Operator(name, DOMAIN, shape=Shapes.BROADCAST_TWO)
        else:
            full = name.startswith("CRMSNormFull")  # it adds an element
            same = not full and signature.output is Output.NORM
            own = Shapes.SAME if same else None
            yield Operator(name, DOMAIN, shape=own)


OWN = tuple(_own())
