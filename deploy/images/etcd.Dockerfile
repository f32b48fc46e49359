# etcd from Debian's package, for where no registry has it; deploy/compose/etcd.yml takes it as ETCD_IMAGE.
# --secret id=ca as in Dockerfile.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
RUN --mount=type=secret,id=ca \
    apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends etcd-server etcd-client \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=etcd --group=etcd --mode=700 /var/lib/etcd
USER etcd
EXPOSE 2379 2380
CMD ["etcd"]
