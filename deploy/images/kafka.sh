#!/bin/bash
# Starts the Apache Kafka of kafka.Dockerfile: the variables KAFKA_* are its server.properties, as in the image apache/kafka.
# There, "_" stands for ".", "__" for "_" and "___" for "-"; KAFKA_HEAP_OPTS is for Java.
set -euo pipefail
properties=/tmp/server.properties
: > "$properties"
while IFS='=' read -r -d '' name value; do
  case $name in
    KAFKA_HEAP_OPTS) continue ;;
    KAFKA_*) ;;
    *) continue ;;
  esac
  key=${name#KAFKA_}
  key=${key,,}
  key=${key//___/-}
  key=${key//__/$'\1'}
  key=${key//_/.}
  printf '%s=%s\n' "${key//$'\1'/_}" "$value" >> "$properties"
done < /proc/self/environ
# shellcheck disable=SC2086  # several flags
java=(java ${KAFKA_HEAP_OPTS:--Xmx512m} -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp '/opt/kafka/libs/*')
"${java[@]}" kafka.tools.StorageTool format --ignore-formatted -t "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" -c "$properties"
exec "${java[@]}" kafka.Kafka "$properties"
