# dadlm serve on port 8000, as a user without rights. For the CPU:
#   docker build -t dadlm --build-arg TORCH_INDEX=URL-OF-A-CPU-INDEX .
# Without TORCH_INDEX pip takes its default build of torch, which has CUDA on Linux: several GB larger, for both.
# For CUDA: docker build -t dadlm:cuda --build-arg EXTRAS=serve,kernels .
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
ARG TORCH="torch==2.13.0"
ARG TORCH_INDEX=""
ARG EXTRAS="serve"
WORKDIR /build
RUN python -m venv /opt/dadlm
COPY constraints.txt .
RUN /opt/dadlm/bin/pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH" \
    && /opt/dadlm/bin/python -c "from importlib.metadata import version as v; print('torch==' + v('torch'))" > keep-torch.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/dadlm/bin/pip install --no-cache-dir -c constraints.txt -c keep-torch.txt ".[$EXTRAS]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/dadlm /opt/dadlm
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin dadlm
ENV PATH=/opt/dadlm/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=passive
USER 10001
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["dadlm"]
CMD ["serve", "--host", "0.0.0.0"]
