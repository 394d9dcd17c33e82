# A GPU node. It knows the market's address and its own credentials, nothing else.
# The context is the repository, or dist/finetender-node-image.tar.gz, which a market serves.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS wheel
COPY docker/requirements /tmp/requirements
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement /tmp/requirements/build.txt
COPY workers /src/workers
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist /src/workers

FROM pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime@sha256:db80a41f8428644cebcb3d75b0b62df334ab6c0e75785951eb25f48bfbd42407 AS node
ENV PYTHONUNBUFFERED=1
WORKDIR /app
COPY docker/requirements/node.txt constraints.txt /tmp/
# PyTorch is the base image's own.
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement /tmp/node.txt \
    && groupadd --system --gid 10001 finetender && useradd --system --uid 10001 --gid 10001 --home /state finetender \
    && mkdir /state && chown finetender /state
# After a change of the node's code only this is made again.
COPY --from=wheel /dist /tmp/dist
RUN grep -v '^torch==' /tmp/constraints.txt > /tmp/versions.txt \
    && pip install --no-cache-dir --constraint /tmp/versions.txt /tmp/dist/*.whl \
    && rm -r /tmp/dist /tmp/node.txt /tmp/constraints.txt /tmp/versions.txt

# For machines that the house rents (TIERS_WORKER_IMAGE): docker build --target rented.
# SkyPilot sets a container up as its root and starts the node, which gives root up first.
FROM node AS rented
USER root

FROM node
USER finetender
VOLUME /state
ENTRYPOINT ["python", "-m", "workers"]
CMD ["run", "--state-dir", "/state"]
