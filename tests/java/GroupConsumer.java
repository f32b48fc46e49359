import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a consumer group (group.protocol=consumer): prints what it is assigned and what it reads, commits after
 * every poll, and ends after so many records.
 *
 * Arguments: bootstrap, group, "names" or "regex", the topics (separated by commas) or the expression, number of
 * records, then settings as key=value.
 */
public final class GroupConsumer {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
                "bootstrap.servers", arguments[0],
                "group.id", arguments[1],
                "group.protocol", "consumer",
                "auto.offset.reset", "earliest",
                "enable.auto.commit", "false"));
        for (int index = 5; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        int wanted = Integer.parseInt(arguments[4]);
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (arguments[2].equals("regex")) {
                consumer.subscribe(new SubscriptionPattern(arguments[3]), new Printer());
            } else {
                consumer.subscribe(List.of(arguments[3].split(",")), new Printer());
            }
            for (int found = 0; found < wanted && System.nanoTime() < deadline; ) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new TreeMap<>((a, b) -> a.toString().compareTo(b.toString()));
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(250))) {
                    System.out.printf("record %s-%d %d %s%n", record.topic(), record.partition(), record.offset(), record.value());
                    offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    found++;
                }
                if (!offsets.isEmpty()) {
                    consumer.commitSync(offsets);
                }
            }
        }
    }

    private static final class Printer implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            print("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            print("revoked", partitions);
        }

        private void print(String what, Collection<TopicPartition> partitions) {
            System.out.println(what + " " + partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.joining(",")));
        }
    }
}
