"""The operator table: the effect of each operator on means, channels and factors."""

from onnxfold.operators.contrib import CONTRIB, OWN
from onnxfold.operators.opaque import OPAQUE
from onnxfold.operators.standard import STANDARD
from onnxfold.operators.table import add

add((*STANDARD, *OPAQUE, *CONTRIB, *OWN))
