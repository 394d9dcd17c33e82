#!/bin/sh
# Writes what a provider's machine installs into dist/, or $DIST: the node's wheel, the versions it
# was tried with, and the context that its image is built from.
# What builds it has to be there: docker/requirements/build.txt.
set -eu
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
dist=${DIST:-dist}
mkdir -p "$dist" "$build/context/workers"
cp -R workers/. "$build/context/workers"
find "$build/context" -name __pycache__ -prune -exec rm -rf {} +
mkdir -p "$build/context/docker/requirements"
cp constraints.txt "$build/context/"
cp docker/requirements/build.txt docker/requirements/node.txt "$build/context/docker/requirements/"
cp docker/worker.Dockerfile "$build/context/Dockerfile"
tar -C "$build/context" -czf "$build/finetender-node-image.tar.gz" Dockerfile constraints.txt docker workers
"${PYTHON:-python3}" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$build" "$build/context/workers"
rm -f "$dist"/finetender_node-*.whl
mv "$build"/*.whl "$build/finetender-node-image.tar.gz" "$dist"/
cp constraints.txt "$dist"/
