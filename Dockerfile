# embedllm's command line, worker and server: docker build -t embedllm . (docs/platforms.md#docker)
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG EXTRAS=""
# tests of the packages are a tenth of them, and nothing imports them
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(ls /wheels/embedllm-*.whl)${EXTRAS}" \
    && find /usr/local/lib/python3.13/site-packages -depth -type d \( -name tests -o -path '*/onnx/backend/test' \) \
        -exec rm -r {} + \
    && useradd --uid 10001 --create-home app \
    && mkdir /home/app/.cache \
    && chown app /home/app/.cache
USER 10001
WORKDIR /home/app
ENTRYPOINT ["embedllm"]
CMD ["--help"]
