# The controller, and nothing of the bundle or the testbed.
FROM public.ecr.aws/docker/library/python:3.13-slim AS dependencies
WORKDIR /build
COPY pyproject.toml .
# The versions stand in pyproject.toml alone; Pulumi is for whoever runs `pulumi up`.
RUN python -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print('\n'.join(d for d in project['dependencies'] if not d.startswith('pulumi')))" \
    > requirements.txt \
 && python -m venv /opt/joiner \
 && /opt/joiner/bin/pip install --no-cache-dir --requirement requirements.txt

FROM public.ecr.aws/docker/library/python:3.13-slim
# Compiled beforehand: the root file system is read-only when the controller runs.
COPY --from=dependencies /opt/joiner /opt/joiner
COPY controller /app/controller
RUN /opt/joiner/bin/python -m compileall -q /app
WORKDIR /app
ENV PATH=/opt/joiner/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080 8081
CMD ["python", "-m", "controller", "run"]
