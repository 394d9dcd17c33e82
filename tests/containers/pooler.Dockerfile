# PgBouncer of Debian. It does not run as root.
FROM python:3.12-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends pgbouncer && rm -rf /var/lib/apt/lists/*
USER nobody
