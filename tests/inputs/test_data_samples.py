"""The first rows of data as samples: how many, of what shape, and what is wrong with them."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.errors import DataError, OnnxfoldError, UsageError
from onnxfold.inputs.data import read_samples


def model(inputs: str = "float[N, 4] x") -> ir.Model:
    text = (
        f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => (float[M, 4] y) {{ y = Abs (x) }}'
    )
    return ir.from_proto(onnx.parser.parse_model(text))


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_a_row_is_a_sample(tmp_path: Path) -> None:
    found = read_samples(saved(tmp_path, x=ROWS), model(), None)
    assert (found.rows, found.more, len(found.feeds)) == (10, False, 10)
    np.testing.assert_array_equal(np.concatenate([f["x"] for f in found.feeds]), ROWS)
    assert found.label == f"10 rows of {tmp_path / 'data.npz'}"


def test_an_input_of_strings_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^input 's' is not a tensor of numbers: no data"):
        read_samples(saved(tmp_path, x=ROWS), model("float[N, 4] x, string[N] s"), None)


def test_only_the_first_rows_are_read_and_that_is_said(tmp_path: Path) -> None:
    found = read_samples(saved(tmp_path, x=ROWS), model(), None, rows=3)
    assert (found.rows, found.more, len(found.feeds)) == (3, True, 3)
    assert found.label.startswith("the first 3 rows of ")


@pytest.mark.parametrize(("rows", "kept"), [(32, 8), (8, 8), (5, 4), (2, 4)])
def test_a_model_with_a_batch_of_its_own_gets_whole_ones(
    tmp_path: Path, rows: int, kept: int
) -> None:
    found = read_samples(saved(tmp_path, x=ROWS), model("float[4, 4] x"), None, rows)
    assert [feeds["x"].shape for feeds in found.feeds] == [(4, 4)] * (kept // 4)
    assert found.rows == kept
    assert found.more


def test_several_files_are_read_in_order(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", ROWS + number)
    found = read_samples(tmp_path, model(), None, rows=25)
    assert found.rows == 25
    assert found.more
    assert found.feeds[-1]["x"][0, 0] == ROWS[4, 0] + 2


def test_images_and_tables_are_read_as_measure_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": ROWS.tolist()}), tmp_path / "rows.parquet")
    found = read_samples(tmp_path / "rows.parquet", model(), None)
    np.testing.assert_array_equal(found.feeds[3]["x"], ROWS[3:4])


def _nan(folder: Path) -> Path:
    rows = ROWS.copy()
    rows[7, 2] = np.nan
    return saved(folder, x=rows)


def _text(folder: Path, name: str) -> Path:
    (folder / name).write_text("no array")
    return folder / name


def _empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def _renamed(folder: Path) -> Path:
    np.save(folder / "rows.npy", ROWS)
    return (folder / "rows.npy").rename(folder / "rows.npz")


BAD = {
    "missing": (lambda f: f / "none.npz", "there is no data at"),
    "empty folder": (_empty_folder, "contains no data"),
    "nan": (_nan, "row 7 has NaN in input 'x'"),
    "other name": (lambda f: saved(f, z=ROWS), "nothing for input 'x'"),
    "other width": (lambda f: saved(f, x=ROWS[:, :3]), r"input 'x' is \[\?|input 'x' is \[N, 4\]"),
    "other type": (lambda f: saved(f, x=ROWS.astype(np.complex64)), "the data has complex64"),
    "no rows": (lambda f: saved(f, x=ROWS[:0]), "it holds 0 rows"),
    "no archive": (lambda f: _text(f, "x.npz"), "cannot be read as arrays"),
    "no array": (lambda f: _text(f, "x.npy"), "cannot be read as arrays"),
    "an array named archive": (_renamed, "cannot be read as arrays"),
    "pickled": (lambda f: saved(f, x=np.array([{}], object)), "cannot be read as arrays"),
    "no parquet": (lambda f: _text(f, "x.parquet"), "cannot be read as Parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(OnnxfoldError, match=message) as raised:
        read_samples(make(tmp_path), model(), None)
    assert isinstance(raised.value, DataError)
    assert "\n" not in str(raised.value)


def test_too_few_rows_for_the_batch_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds 10 rows, and the model takes 16 together"):
        read_samples(saved(tmp_path, x=ROWS), model("float[16, 4] x"), None)


def test_a_senseless_number_of_rows(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rows= must be 1 or more, not 0"):
        read_samples(saved(tmp_path, x=ROWS), model(), None, rows=0)
