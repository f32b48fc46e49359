import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's own clients, driven by a test one step at a time (tests/support/kafka/java_clients.py).
 *
 * Each line of standard input is a step, a JSON object whose field "do" names it; each line of standard output is its
 * result. A step that throws answers {"error": CLASS, "message": TEXT}. Keys, values and headers are base64 or null.
 */
public final class JavaClients {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, Member> members = new LinkedHashMap<>();
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new LinkedHashMap<>();

    /** A share consumer, the records of its last poll, and what its acknowledgement commit callback was told. */
    private static final class Member {
        private final KafkaShareConsumer<byte[], byte[]> consumer;
        private final Map<String, ConsumerRecord<byte[], byte[]>> polled = new LinkedHashMap<>();
        private final List<Object> callbacks = new ArrayList<>();

        private Member(Properties settings) {
            consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                Map<String, Object> call = new LinkedHashMap<>();
                offsets.forEach((at, found) -> call.put(at.topic() + "-" + at.partition(), new TreeSet<>(found)));
                Map<String, Object> told = new LinkedHashMap<>();
                told.put("offsets", call);
                told.put("error", error == null ? null : error.getClass().getSimpleName());
                callbacks.add(told);
            });
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        JavaClients clients = new JavaClients();
        BufferedReader steps = new BufferedReader(new InputStreamReader(System.in));
        for (String line = steps.readLine(); line != null; line = steps.readLine()) {
            Object answer;
            try {
                answer = clients.step(JSON.readTree(line));
            } catch (Exception thrown) {
                Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                answer = failure(error);
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        clients.closeAll();
    }

    private static Map<String, Object> failure(Throwable error) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("error", error.getClass().getSimpleName());
        StringBuilder message = new StringBuilder(String.valueOf(error.getMessage()));
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            message.append("; caused by ").append(cause);
        }
        answer.put("message", message.toString());
        return answer;
    }

    private Object step(JsonNode step) throws Exception {
        String name = step.path("name").asText();
        switch (step.get("do").asText()) {
            case "openMember":
                Member opened = new Member(settings(step));
                members.put(name, opened);
                opened.consumer.subscribe(strings(step.get("topics")));
                return Map.of();
            case "poll":
                return poll(members.get(name), step);
            case "acknowledge":
                acknowledge(members.get(name), step);
                return Map.of();
            case "commitSync":
                return commitSync(members.get(name));
            case "commitAsync":
                members.get(name).consumer.commitAsync();
                return Map.of();
            case "callbacks":
                List<Object> told = new ArrayList<>(members.get(name).callbacks);
                members.get(name).callbacks.clear();
                return Map.of("calls", told);
            case "lockTimeoutMs":
                return Map.of("lockTimeoutMs", members.get(name).consumer.acquisitionLockTimeoutMs().orElse(-1));
            case "closeMember":
                members.remove(name).consumer.close();
                return Map.of();
            case "shareGroupOffsets":
                return shareGroupOffsets(settings(step), step.get("group").asText());
            case "committedOffsets":
                return committedOffsets(settings(step), step.get("group").asText());
            case "consume":
                return consume(step);
            default:
                return produceStep(name, step);
        }
    }

    private Object produceStep(String name, JsonNode step) throws Exception {
        switch (step.get("do").asText()) {
            case "openProducer":
                producers.put(name,
                    new KafkaProducer<>(settings(step), new ByteArraySerializer(), new ByteArraySerializer()));
                return Map.of();
            case "send":
                return send(producers.get(name), step);
            case "initTransactions":
                producers.get(name).initTransactions();
                return Map.of();
            case "beginTransaction":
                producers.get(name).beginTransaction();
                return Map.of();
            case "sendOffsets":
                sendOffsets(producers.get(name), step);
                return Map.of();
            case "commitTransaction":
                producers.get(name).commitTransaction();
                return Map.of();
            case "abortTransaction":
                producers.get(name).abortTransaction();
                return Map.of();
            case "closeProducer":
                producers.remove(name).close();
                return Map.of();
            default:
                throw new IllegalArgumentException("no such step: " + step);
        }
    }

    private static Object poll(Member member, JsonNode step) {
        List<Object> records = new ArrayList<>();
        ConsumerRecords<byte[], byte[]> found = member.consumer.poll(Duration.ofMillis(step.get("ms").asLong()));
        member.polled.clear();
        for (ConsumerRecord<byte[], byte[]> record : found) {
            member.polled.put(place(record.topic(), record.partition(), record.offset()), record);
            records.add(described(record));
        }
        return Map.of("records", records);
    }

    private static void acknowledge(Member member, JsonNode step) {
        for (JsonNode one : step.get("records")) {
            String at = place(one.get("topic").asText(), one.get("partition").asInt(), one.get("offset").asLong());
            member.consumer.acknowledge(member.polled.get(at), AcknowledgeType.valueOf(one.get("type").asText()));
        }
    }

    private static Object commitSync(Member member) {
        Map<String, Object> results = new LinkedHashMap<>();
        member.consumer.commitSync().forEach((at, error) -> results.put(
            at.topic() + "-" + at.partition(),
            error.map(found -> found.getClass().getSimpleName()).orElse("ok")));
        return Map.of("results", results);
    }

    private static Object shareGroupOffsets(Properties settings, String group) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            Map<String, Object> found = new LinkedHashMap<>();
            admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group).get().forEach((at, info) -> {
                    Map<String, Object> described = new LinkedHashMap<>();
                    described.put("startOffset", info == null ? null : info.startOffset());
                    described.put("lag", info == null ? null : info.lag().orElse(null));
                    found.put(at.toString(), described);
                });
            return Map.of("partitions", found);
        }
    }

    private static Object committedOffsets(Properties settings, String group) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            Map<String, Object> found = new LinkedHashMap<>();
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .forEach((at, committed) -> found.put(at.toString(), committed == null ? null : committed.offset()));
            return Map.of("partitions", found);
        }
    }

    private static void sendOffsets(KafkaProducer<byte[], byte[]> producer, JsonNode step) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new LinkedHashMap<>();
        for (JsonNode one : step.get("offsets")) {
            offsets.put(
                new TopicPartition(one.get("topic").asText(), one.get("partition").asInt()),
                new OffsetAndMetadata(one.get("offset").asLong()));
        }
        producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(step.get("group").asText()));
    }

    /** Sends all records and waits for each: its offset, or the error that it met. */
    private static Object send(KafkaProducer<byte[], byte[]> producer, JsonNode step) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        List<Object> results = new ArrayList<>();
        for (JsonNode one : step.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : one.path("headers")) {
                headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
            }
            Long timestamp = one.hasNonNull("timestamp") ? one.get("timestamp").asLong() : null;
            sent.add(producer.send(new ProducerRecord<>(step.get("topic").asText(), step.get("partition").asInt(),
                timestamp, bytes(one.get("key")), bytes(one.get("value")), headers)));
        }
        producer.flush();
        for (Future<RecordMetadata> future : sent) {
            try {
                results.add(Map.of("offset", future.get().offset()));
            } catch (ExecutionException thrown) {
                results.add(failure(thrown.getCause()));
            }
        }
        return Map.of("results", results);
    }

    /** Reads a partition from its start with an ordinary consumer until so many records came. */
    private static Object consume(JsonNode step) {
        List<Object> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 20_000;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings(step), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition at = new TopicPartition(step.get("topic").asText(), step.get("partition").asInt());
            consumer.assign(List.of(at));
            consumer.seekToBeginning(List.of(at));
            while (records.size() < step.get("records").asInt() && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> records.add(described(record)));
            }
        }
        return Map.of("records", records);
    }

    private static Map<String, Object> described(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("topic", record.topic());
        found.put("partition", record.partition());
        found.put("offset", record.offset());
        found.put("deliveryCount", record.deliveryCount().orElse(null));
        found.put("timestamp", record.timestamp());
        found.put("key", text(record.key()));
        found.put("value", text(record.value()));
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        found.put("headers", headers);
        return found;
    }

    private static String place(String topic, int partition, long offset) {
        return topic + "-" + partition + "@" + offset;
    }

    private static byte[] bytes(JsonNode text) {
        return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static List<String> strings(JsonNode list) {
        List<String> found = new ArrayList<>();
        list.forEach(one -> found.add(one.asText()));
        return found;
    }

    private static Properties settings(JsonNode step) {
        Properties settings = new Properties();
        step.get("settings").properties().forEach(one -> settings.put(one.getKey(), one.getValue().asText()));
        return settings;
    }

    private void closeAll() {
        members.values().forEach(member -> member.consumer.close(Duration.ofSeconds(2)));
        producers.values().forEach(producer -> producer.close(Duration.ofSeconds(2)));
    }
}
