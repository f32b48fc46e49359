# Prometheus from Debian's package, for where no registry has prom/prometheus; docker-compose.yml takes it as
# PROMETHEUS_IMAGE. --secret id=ca as in Dockerfile.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
RUN --mount=type=secret,id=ca \
    apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=prometheus --group=prometheus /prometheus
USER prometheus
EXPOSE 9090
ENTRYPOINT ["prometheus"]
