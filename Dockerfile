# embedllm's command line and worker: docker build -t embedllm . (docs/platforms.md#docker)
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG EXTRAS=""
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(ls /wheels/embedllm-*.whl)${EXTRAS}" \
    && useradd --uid 10001 --create-home app \
    && mkdir /home/app/.cache \
    && chown app /home/app/.cache
USER 10001
WORKDIR /home/app
ENTRYPOINT ["embedllm"]
CMD ["--help"]
