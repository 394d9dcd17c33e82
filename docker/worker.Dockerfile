# A GPU node. It knows the market's address and its own credentials, nothing else.
FROM pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime
ENV PYTHONUNBUFFERED=1
WORKDIR /app
COPY pyproject.toml constraints.txt README.md ./
COPY workers workers
RUN grep -v '^torch==' constraints.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt '.[worker]' && pip uninstall --yes finetender \
    && useradd --system --uid 10001 --home /state finetender && mkdir /state && chown finetender /state
USER finetender
VOLUME /state
ENTRYPOINT ["python", "-m", "workers"]
CMD ["run", "--state-dir", "/state"]
