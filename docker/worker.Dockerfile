# A GPU node. It knows the market's address and its own credentials, nothing else.
# The context is the repository, or dist/finetender-node-image.tar.gz, which a market serves.
FROM python:3.12-slim AS wheel
COPY workers /src/workers
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist /src/workers

FROM pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime AS node
ENV PYTHONUNBUFFERED=1
WORKDIR /app
COPY constraints.txt /tmp/
COPY --from=wheel /dist /tmp/dist
RUN grep -v '^torch==' /tmp/constraints.txt > /tmp/versions.txt \
    && pip install --no-cache-dir --constraint /tmp/versions.txt /tmp/dist/*.whl \
    && rm -r /tmp/dist /tmp/constraints.txt /tmp/versions.txt \
    && groupadd --system --gid 10001 finetender && useradd --system --uid 10001 --gid 10001 --home /state finetender \
    && mkdir /state && chown finetender /state

# For machines that the house rents (TIERS_WORKER_IMAGE): docker build --target rented.
# SkyPilot sets a container up as its root and starts the node, which gives root up first.
FROM node AS rented
USER root

FROM node
USER finetender
VOLUME /state
ENTRYPOINT ["python", "-m", "workers"]
CMD ["run", "--state-dir", "/state"]
