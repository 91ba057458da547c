# onnxfold and ONNX Runtime in one image, for build pipelines: docs/docker.md, docker/build.sh.
# A base image needs Python 3.11 or newer, or apt-get to install it, and glibc; that of the
# builder must not be newer than that of the runtime, whose C library the kernels then meet.
# A digest names one image, whatever the tag is given to later; this one has Python 3.11.16, is for
# amd64, arm64 and others, and was built on 2026-08-25, as docker-library/repo-info lists it.
ARG BUILDER_BASE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b
ARG RUNTIME_BASE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${BUILDER_BASE} AS builder
RUN missing=''; \
    command -v c++ >/dev/null || missing='g++'; \
    python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"; \
    [ -z "$missing" ] || { apt-get update && apt-get install -y --no-install-recommends $missing; }
WORKDIR /src
COPY . .
# Where packages come from: these arguments, which pip reads as its environment, or the secrets
# pip_config and ca_bundle, which leave no trace in the image.
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
# The kernels for CUDA are built where the builder's base has a toolkit. Without a compiler the wheel
# would be built all the same, and have no kernels.
RUN --mount=type=secret,id=pip_config --mount=type=secret,id=ca_bundle \
    export PIP_CONFIG_FILE=/run/secrets/pip_config \
 && if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi \
 && python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip wheel --no-cache-dir --no-deps --wheel-dir /dist \
      --config-settings=cmake.define.ONNXFOLD_CUDA=AUTO . \
 && python3 -m zipfile -l /dist/onnxfold-*.whl | grep onnxfold/_native/libonnxfold_ops

FROM ${RUNTIME_BASE}
RUN python3 -c 'import ensurepip' 2>/dev/null \
 || { apt-get update && apt-get install -y --no-install-recommends python3-venv \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; }
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
# The extra that brings ONNX Runtime: ort, or gpu on a base image with CUDA.
ARG EXTRA=ort
# ONNX Runtime 1.29 and later report to their maker, from a file in the home directory, unless told
# not to. /tmp is a home that any user who is given with --user can write to.
ENV PATH=/opt/onnxfold/bin:$PATH HOME=/tmp ORT_DISABLE_TELEMETRY=1
RUN --mount=type=bind,from=builder,source=/dist,target=/dist \
    --mount=type=secret,id=pip_config --mount=type=secret,id=ca_bundle \
    export PIP_CONFIG_FILE=/run/secrets/pip_config \
 && if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi \
 && python3 -m venv /opt/onnxfold \
 && /opt/onnxfold/bin/python -m pip install --no-cache-dir "$(echo /dist/onnxfold-*.whl)[$EXTRA]" \
 && /opt/onnxfold/bin/python -m pip uninstall --yes setuptools pip \
 && find /opt/onnxfold/lib -type d -name tests -prune -exec rm -rf {} + \
 && onnxfold doctor \
 && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin onnxfold \
 && install -d -o onnxfold -g onnxfold /work

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="onnxfold" \
      org.opencontainers.image.description="Folds every LayerNorm of an ONNX model that can exactly become RMSNorm" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
WORKDIR /work
# A number, so that Kubernetes can see that it is not root.
USER 10001
HEALTHCHECK --interval=5m --timeout=60s --start-period=30s CMD ["onnxfold", "doctor"]
ENTRYPOINT ["onnxfold"]
CMD ["--help"]
