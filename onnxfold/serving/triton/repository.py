"""The files of a model repository, all written before the first gets its final name.

    DIR/NAME/config.pbtxt
    DIR/NAME/libonnxfold_ops.so      where the model calls the kernels
    DIR/NAME/VERSION/model.onnx      and its external data

They are written in a folder of DIR and renamed: the library first, which the configuration names,
then the version, then the configuration. A new model is one rename of its whole folder.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from onnxfold import model_io
from onnxfold.api import optimize
from onnxfold.errors import ModelError, OnnxfoldError, UsageError
from onnxfold.inputs import InputSpec
from onnxfold.model_io.staging import StagingFolder
from onnxfold.pipeline.stage_timer import Stages
from onnxfold.runtime.library import get_library_path
from onnxfold.serving import served_signature
from onnxfold.serving.batch_independence import two_rows, why_rows_mix
from onnxfold.serving.session import open_session
from onnxfold.serving.triton.config import ModelConfig
from onnxfold.serving.triton.deployment import Deployment, TritonDevice
from onnxfold.target import Target

CONFIG = "config.pbtxt"
_MODEL = "model.onnx"
# No model's name starts like this. A polling server reads the part after a dot as the name of a
# backend: it treats the folder as a model that fails to load, and stays unready even when the
# folder is gone.
_STAGING = "~onnxfold-"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Publication:
    """The published model: its folder, its files, and why kernels are missing, if they are."""

    folder: Path
    files: tuple[Path, ...]
    config: str
    without_kernels: str | None
    report: dict[str, Any]


def publish(
    model: str | os.PathLike[str],
    deployment: Deployment,
    *,
    progress: Stages | None = None,
    **options: Any,
) -> Publication:
    """Optimize a model and publish it as one version in a repository of Triton.

    ``options`` are passed to :func:`onnxfold.optimize`; the target is KERNELS unless one is given.
    Raises as that does, UsageError for an existing version or configuration, or batches that the
    model does not support, ModelError for a model that Triton cannot serve. The repository is then
    unchanged.
    """
    source = Path(model)
    chosen = _checked(source, deployment)
    folder = chosen.repository / str(chosen.name)
    with _staging(chosen.repository) as staging:
        new = staging.path / "model"
        (new / "version").mkdir(parents=True)
        staged = new / "version" / _MODEL
        given = {"target": Target.KERNELS, **options}
        report = optimize(source, staged, progress=progress, **given).report
        library, why_not = _library(report, chosen.device)
        if library is not None:
            shutil.copyfile(library, new / library.name)
        spec = InputSpec.parse(options.get("inputs", ()))
        config, untried = _config(staged, chosen, library, spec)
        _check_config(folder / CONFIG, config, chosen)
        if not chosen.keep_config:
            (new / CONFIG).write_text(config, encoding="utf-8")
        files = _move(new, staging, folder, str(chosen.version))
    report["output"]["path"] = str(folder / str(chosen.version) / _MODEL)
    data = report["output"]["data"]
    if data is not None:
        report["output"]["data"] = str(folder / str(chosen.version) / Path(data).name)
    report["triton"] = {
        "name": chosen.name,
        "version": chosen.version,
        "server_repository": chosen.in_server,
        "files": [str(path) for path in files],
        "max_batch_size": chosen.max_batch,
        "batches_not_tried": untried,
        "without_kernels": why_not,
    }
    return Publication(folder, files, config, why_not, report)


def _checked(source: Path, deployment: Deployment) -> Deployment:
    """Fail before the long work if publishing is impossible.

    Return the deployment with all names.
    """
    name = source.stem if deployment.name is None else deployment.name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot name a model in Triton; give a --name of letters, digits, '_', '-' "
            "and '.'"
        )
    if deployment.in_server is not None and not deployment.in_server.startswith("/"):
        raise UsageError(
            f"--repository-in-server {deployment.in_server}: Triton needs an absolute path"
        )
    repository = Path(os.path.abspath(deployment.repository))
    folder = repository / name
    if (folder / str(deployment.version)).exists() and not deployment.force:
        raise UsageError(
            f"version {deployment.version} of '{name}' is in '{repository}' already; choose "
            "another --version, or --force to replace it"
        )
    foreign = _foreign(folder / str(deployment.version))
    if foreign:
        raise UsageError(
            f"version {deployment.version} of '{name}' holds '{foreign[0]}', which onnxfold did "
            "not write; move it, or give another --version"
        )
    if deployment.keep_config and not (folder / CONFIG).is_file():
        raise UsageError(f"--keep-config: there is no '{folder / CONFIG}'")
    if not repository.parent.is_dir() or (repository.exists() and not repository.is_dir()):
        raise ModelError(f"'{repository}' is not a folder and cannot be made; make it first")
    in_server = deployment.in_server or repository.as_posix()
    return replace(deployment, repository=repository, name=name, in_server=in_server)


def _foreign(version: Path) -> list[str]:
    """Return files in a version that are not part of its model, and would be deleted with it."""
    if not version.is_dir():
        return []
    known = {os.path.realpath(version / _MODEL)}
    with contextlib.suppress(ModelError):  # a damaged model is replaced alone
        known |= set(map(os.fspath, model_io.data_files(version / _MODEL).values()))
    names = sorted(each.name for each in version.iterdir())
    return [name for name in names if os.path.realpath(version / name) not in known]


@contextlib.contextmanager
def _staging(repository: Path) -> Iterator[StagingFolder]:
    """Yield a private folder in the repository; remove the repository if it is new and empty."""
    try:
        made = not repository.exists()
        repository.mkdir(exist_ok=True)
        folder = StagingFolder(repository, _STAGING)
        try:
            yield folder
        finally:
            folder.close()
            if made and not any(repository.iterdir()):
                repository.rmdir()
    except OSError as error:
        raise ModelError(f"'{repository}' cannot be written: {error.strerror}") from error


def _library(report: dict[str, Any], device: TritonDevice) -> tuple[Path | None, str | None]:
    """Return the kernels that the model needs on this device, or why there are none."""
    if not report["output"]["functions"]:
        return None, "the model calls none"
    try:
        return Path(get_library_path("cuda" if device is TritonDevice.GPU else "cpu")), None
    except UsageError:
        raise
    except OnnxfoldError as error:
        return None, str(error)


def _config(
    staged: Path, chosen: Deployment, library: Path | None, spec: InputSpec
) -> tuple[str, str | None]:
    """Return the content of config.pbtxt, and why batching was not tried, if so."""
    # This session runs on the CPU, whose library may be missing where CUDA's is present; the bodies
    # of the functions have the same shapes.
    with_kernels = library is not None and chosen.device is TritonDevice.CPU
    name = str(chosen.name)
    session = open_session(staged, name=name, library="cpu" if with_kernels else None)
    signature = served_signature.signature_of(session, staged, name)
    _demand_elements(signature, name)
    untried = None
    if chosen.max_batch:
        reason = served_signature.why_not_batched(signature)
        if reason is None:
            reason, untried = _try_rows(session, staged, signature, spec)
        if reason is not None:
            raise UsageError(
                f"--max-batch {chosen.max_batch}: the model cannot batch requests: {reason}; "
                "without the option Triton joins nothing"
            )
    path = None
    if library is not None:
        path = str(PurePosixPath(str(chosen.in_server)) / name / library.name)
    config = ModelConfig(name, signature, chosen.max_batch, chosen.device, path, chosen.threads)
    return config.text(), untried


def _demand_elements(signature: served_signature.ServedSignature, name: str) -> None:
    for spec in (*signature.inputs, *signature.outputs):
        if 0 in spec.dims:
            raise ModelError(
                f"cannot serve '{name}': '{spec.name}' has the shape {list(spec.dims)}, without "
                "any element, which Triton refuses"
            )


def _try_rows(
    session: Any, staged: Path, signature: served_signature.ServedSignature, spec: InputSpec
) -> tuple[str | None, str | None]:
    """Return why the rows of requests must not be batched, and why that could not be tried."""
    try:
        feeds = two_rows(model_io.load(staged), spec)
    except UsageError as error:
        reason = served_signature.why_unsure(signature)
        if reason is not None:
            return f"{reason}, and no trial can be made: {error}", None
        return None, str(error)
    feeds = {spec.name: feeds[spec.name] for spec in signature.without_optional().inputs}
    return why_rows_mix(session, feeds, [tensor.name for tensor in signature.outputs]), None


def _check_config(existing: Path, config: str, chosen: Deployment) -> None:
    """Refuse to replace a different configuration, which somebody may have edited."""
    if chosen.force or chosen.keep_config or not existing.exists():
        return
    if existing.read_text(encoding="utf-8") != config:
        raise UsageError(
            f"'{existing}' differs from what this model needs; --keep-config keeps it, "
            "--force replaces it"
        )


def _move(new: Path, staging: StagingFolder, folder: Path, version: str) -> tuple[Path, ...]:
    """Rename the staged files; the replaced ones are deleted with the staging folder."""
    (new / "version").rename(new / version)
    names = [*sorted(path.name for path in new.iterdir() if path.is_file()), version]
    contents = sorted(path.name for path in (new / version).iterdir())
    if not folder.exists():
        new.rename(folder)
    else:
        for name in sorted(names, key=lambda name: (name == CONFIG, name == version)):
            if name == version and (folder / version).exists():
                # If killed in between, this folder has the only copy of the old one.
                staging.disown()
                _exchange(new / version, folder / version, staging.path / "replaced")
            else:
                (new / name).replace(folder / name)
    files = [folder / name for name in names if name != version]
    return (*files, *(folder / version / name for name in contents))


def _exchange(new: Path, old: Path, away: Path) -> None:
    """Replace one folder by another; on failure, restore the old one."""
    old.rename(away)
    try:
        new.rename(old)
    except OSError:
        away.rename(old)
        raise
