# A GPU node. It knows the market's address and its own credentials, nothing else.
FROM pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime AS node
ENV PYTHONUNBUFFERED=1
WORKDIR /app
COPY pyproject.toml constraints.txt README.md ./
COPY workers workers
RUN grep -v '^torch==' constraints.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt '.[worker]' && pip uninstall --yes finetender \
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
