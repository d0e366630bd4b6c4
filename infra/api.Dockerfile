# The API family: api, courier and sweeper. No torch, no model weights but the small demo checkpoint.
# Build from the repository's root: docker build -f infra/api.Dockerfile -t planpaint-api .

FROM python:3.11-slim-bookworm AS build

# uv, and not pip: it takes the lock as constraints and checks their hashes too. So the image gets the locked, hashed
# versions of just the packages that it needs; `pip install -r requirements.lock` would bring transformers and pytest.
RUN pip install --no-cache-dir uv==0.13.9
ENV VIRTUAL_ENV=/opt/planpaint UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never
RUN uv venv "$VIRTUAL_ENV"

WORKDIR /src
COPY pyproject.toml requirements.lock ./
RUN uv pip install --requirements pyproject.toml --constraints requirements.lock

COPY README.md LICENSE ./
COPY app app
COPY api api
COPY workers workers
RUN uv pip install --no-deps .

FROM python:3.11-slim-bookworm

RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp planpaint
COPY --from=build /opt/planpaint /opt/planpaint
ENV PATH=/opt/planpaint/bin:$PATH PYTHONUNBUFFERED=1 PLANPAINT_API_HOST=0.0.0.0
WORKDIR /tmp
USER 10001:10001

# The port is a constant inside of the container: publish it as whatever you like.
ENV PLANPAINT_API_PORT=8000
EXPOSE 8000
# For the api role; compose.yaml switches it off for courier and sweeper, which serve no HTTP.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]

ENTRYPOINT ["planpaint"]
CMD ["api"]
