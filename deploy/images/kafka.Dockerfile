# Apache Kafka from jars (Maven Central's, say), for where no registry has apache/kafka; docker-compose.yml takes it as
# KAFKA_IMAGE. It has that image's variables: KAFKA_NODE_ID is node.id in server.properties. --secret id=ca as in Dockerfile.
#
#     mvn -f tests/java/kafka-3.9-pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=/tmp/kafka/jars
#     cp deploy/images/kafka.sh /tmp/kafka/
#     docker build -f deploy/images/kafka.Dockerfile -t kafka /tmp/kafka
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
RUN --mount=type=secret,id=ca \
    apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home --home-dir /opt/kafka kafka \
    && install --directory --owner=kafka --group=kafka /var/lib/kafka /var/lib/kafka/data
COPY jars /opt/kafka/libs
COPY kafka.sh /opt/kafka/run.sh
USER 1000:1000
VOLUME /var/lib/kafka/data
EXPOSE 9092
ENTRYPOINT ["bash", "/opt/kafka/run.sh"]
