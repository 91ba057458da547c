"""The types of the arrays that constants are read as and computed in."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]
