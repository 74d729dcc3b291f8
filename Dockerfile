# The controller, and nothing of the bundle or the testbed, for amd64 and arm64.
#
# `pulumi up` and `make push` assemble the same image without a container engine
# (infra/deployment/image.py); this file is for people who build by hand.
#
# What is fetched is so on the machine that builds, for the one that runs: the last stage only
# copies, so that no step of a foreign architecture is emulated.

# By digest, so that two builds are of one base; `make base` pins today's, with its fixes.
ARG PYTHON=public.ecr.aws/docker/library/python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM --platform=$BUILDPLATFORM $PYTHON AS build
ARG TARGETARCH
WORKDIR /build
COPY infra/deployment/imagelayer.py .
COPY controller controller
RUN python imagelayer.py "$TARGETARCH" /opt/joiner

FROM $PYTHON
ARG PYTHON
LABEL org.opencontainers.image.title="Joiner" \
      org.opencontainers.image.description="A node autoscaler for Amazon EKS" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="$PYTHON"
COPY --from=build /opt/joiner /opt/joiner
WORKDIR /opt/joiner
ENV PYTHONPATH=/opt/joiner/packages \
    PYTHONPYCACHEPREFIX=/tmp/python \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080 8081
CMD ["python", "-m", "controller", "run"]
