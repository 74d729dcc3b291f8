# The controller, and nothing of the bundle or the testbed, for amd64 and arm64.
#
# What is fetched and compiled is so on the machine that builds, for the one that runs: the
# last stage only copies, so that no step of a foreign architecture is emulated.

# By digest, so that two builds are of one base; `make base` pins today's, with its fixes.
ARG PYTHON=public.ecr.aws/docker/library/python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM --platform=$BUILDPLATFORM $PYTHON AS build
ARG TARGETARCH
WORKDIR /build
COPY pyproject.toml infra/requirements.txt .
# What the controller needs is in pyproject.toml; what is excluded here, only people need who run
# `pulumi up`. The lock holds every package that follows from it at the version that the tests run on.
RUN grep == requirements.txt > lock.txt && python -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
only_program = ('pulumi', 'kubernetes', 'botocore', 'jsonschema'); \
print('\n'.join(d for d in project['dependencies'] if not d.startswith(only_program)))" \
    > wanted.txt \
 && case "$TARGETARCH" in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) exit 1 ;; esac \
 && pip install --no-cache-dir --target /opt/joiner/packages --requirement wanted.txt \
    --constraint lock.txt --only-binary :all: --platform "manylinux_2_28_$machine" --platform "manylinux2014_$machine"
COPY controller /opt/joiner/controller
# Compiled beforehand: the root file system is read-only when the controller runs.
RUN python -m compileall -q /opt/joiner

FROM $PYTHON
ARG PYTHON
LABEL org.opencontainers.image.title="Joiner" \
      org.opencontainers.image.description="A node autoscaler for Amazon EKS" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="$PYTHON"
COPY --from=build /opt/joiner /opt/joiner
WORKDIR /opt/joiner
ENV PYTHONPATH=/opt/joiner/packages \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080 8081
CMD ["python", "-m", "controller", "run"]
