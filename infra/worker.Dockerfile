# The worker family: ar and dit, with torch. The role is the command; there is no default one.
# Build from the repository's root: docker build -f infra/worker.Dockerfile -t planpaint-worker .

# An NPU host needs a base image with CANN inside (see README.md): --build-arg BASE=...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build

# See api.Dockerfile for why uv: the lock's versions and hashes for just the packages of this image.
# torch is not in the lock, because its builds differ by device; pyproject.toml holds its range.
RUN pip install --no-cache-dir uv==0.13.9
ENV VIRTUAL_ENV=/opt/planpaint UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never
RUN uv venv "$VIRTUAL_ENV"

WORKDIR /src
COPY pyproject.toml requirements.lock ./
# Which build of torch: cpu, cu126, cu130, ...; empty takes the package index's default build.
ARG TORCH_BACKEND=cpu
# "worker npu" on an NPU host.
ARG EXTRAS=worker
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN read -r -a extras <<< "$EXTRAS" \
    && uv pip install --requirements pyproject.toml "${extras[@]/#/--extra=}" --constraints requirements.lock \
    ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"}

COPY README.md LICENSE ./
COPY app app
COPY api api
COPY workers workers
RUN uv pip install --no-deps .

FROM ${BASE}

RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp planpaint
COPY --from=build /opt/planpaint /opt/planpaint
# A checkpoint is a folder on disk; a worker that asked a model hub for a missing file would hide that it is missing.
ENV PATH=/opt/planpaint/bin:$PATH PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
WORKDIR /tmp
USER 10001:10001

ENTRYPOINT ["planpaint"]
