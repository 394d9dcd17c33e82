# The market: web server, auction lane, Celery workers and beat share this image.
FROM node:22-slim@sha256:c3de60bf2f9dd0ac6370e6117950ff62d6e339527e7472301c9c78a017978392 AS pages
WORKDIR /src
COPY frontend/web/package.json frontend/web/package-lock.json frontend/web/
RUN cd frontend/web && npm ci --no-audit --no-fund
COPY frontend/web frontend/web
COPY marketplace/web marketplace/web
RUN cd frontend/web && npm run build

# What the market serves to machines that join.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS node-package
WORKDIR /src
COPY constraints.txt ./
COPY docker/requirements docker/requirements
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement docker/requirements/build.txt
COPY docker docker
COPY workers workers
RUN docker/node_dist.sh

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
ENV PYTHONUNBUFFERED=1 DJANGO_SETTINGS_MODULE=marketplace.config.settings.production DATA_DIR=/data
WORKDIR /app
COPY docker/requirements/build.txt docker/requirements/market.txt docker/requirements/
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement docker/requirements/build.txt --requirement docker/requirements/market.txt
# The clouds' clients, for machines that the house rents. SkyPilot's pins leave no versions that fit
# the market's web server: docker/cloud_requirements.py leaves them out. They are imported once here,
# before the market's own code, with which most builds begin.
COPY pyproject.toml constraints.txt ./
COPY docker/cloud_requirements.py docker/cloud_requirements.py
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['cloud'], sep='\n')" > /tmp/clouds.txt \
    && pip install --no-cache-dir --no-deps --requirement /tmp/clouds.txt \
    && pip install --no-cache-dir packaging && python docker/cloud_requirements.py $(sed 's/==.*//' /tmp/clouds.txt) > /tmp/wanted.txt \
    && pip install --no-cache-dir --constraint constraints.txt --requirement /tmp/wanted.txt \
    && rm /tmp/clouds.txt /tmp/wanted.txt && python -c 'import modal, sky'
# What this Python needs beside it, and what the automatic vendor works with. Of the market itself
# nothing is installed: after a change of its code only what stands below is made again.
RUN python -c "import tomllib; wanted = tomllib.load(open('pyproject.toml', 'rb'))['project']; parts = wanted['optional-dependencies']; print(*wanted.get('dependencies', []), *(line for part in ('web', 'vendor', 'tracking', 'traces') for line in parts[part]), sep='\n')" > /tmp/wanted.txt \
    && pip install --no-cache-dir --no-build-isolation --constraint constraints.txt --requirement /tmp/wanted.txt && rm /tmp/wanted.txt
COPY README.md manage.py ./
COPY docker/ask_health.py docker/ask_health.py
COPY marketplace marketplace
COPY scheduler scheduler
COPY docs/api docs/api
COPY docs/guides docs/guides
COPY workers/__init__.py workers/__init__.py
COPY workers/protocol workers/protocol
COPY workers/models workers/models
COPY workers/preparation workers/preparation
COPY --from=node-package /src/dist dist
COPY --from=pages /src/marketplace/web/static marketplace/web/static
# The values are for this step only; serving demands real ones.
RUN SECRET_KEY=for-collecting-static-files-only-never-used-to-serve-anyone PUBLIC_URL=https://localhost \
    ALLOWED_HOSTS=localhost METRICS_TOKEN=unused DATABASE_URL=postgresql://build/build REDIS_URL=redis://:unused@build/0 \
    python manage.py collectstatic --no-input \
    && useradd --system --uid 10001 --home /data finetender && mkdir -m 700 /data /keys /backups && chown finetender /data /keys /backups
USER finetender
VOLUME /data
EXPOSE 8000
CMD ["python", "-m", "marketplace.config.web_server", "--host", "0.0.0.0", "--port", "8000"]
