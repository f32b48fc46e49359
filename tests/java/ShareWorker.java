import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;

/**
 * Drives Apache Kafka's own KafkaShareConsumer for a test and prints what happened, one line an event:
 *
 *   record PARTITION OFFSET DELIVERY_COUNT VALUE ACKNOWLEDGE_TYPE
 *   commit PARTITION ok|ERROR
 *   done RECORDS
 *
 * Arguments: BOOTSTRAP TOPIC GROUP MODE RECORDS [key=value of the consumer]...
 * MODE: implicit, explicit (accepts all), mixed (by a record's value: "release…" is released at its first delivery,
 * "reject…" is rejected, "renew…" is renewed once and then accepted, all else accepted).
 * It ends when RECORDS records were accepted or rejected, or fails after 60 seconds.
 */
public final class ShareWorker {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        String mode = arguments[3];
        int wanted = Integer.parseInt(arguments[4]);
        settings.put("share.acknowledgement.mode", mode.equals("implicit") ? "implicit" : "explicit");
        for (int i = 5; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        long deadline = System.currentTimeMillis() + 60_000;
        int finished = 0;
        Map<String, Integer> renewed = new HashMap<>();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(arguments[1]));
            while (finished < wanted) {
                if (System.currentTimeMillis() > deadline) {
                    System.out.println("timeout " + finished);
                    System.exit(1);
                }
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                for (ConsumerRecord<String, String> record : records) {
                    AcknowledgeType type = mode.equals("mixed") ? typeFor(record, renewed) : AcknowledgeType.ACCEPT;
                    System.out.println("record " + record.partition() + " " + record.offset() + " "
                        + record.deliveryCount().orElse((short) 0) + " " + record.value() + " " + type);
                    if (!mode.equals("implicit")) {
                        consumer.acknowledge(record, type);
                    }
                    if (type == AcknowledgeType.ACCEPT || type == AcknowledgeType.REJECT) {
                        finished++;
                    }
                }
                for (Map.Entry<TopicIdPartition, Optional<KafkaException>> result : consumer.commitSync().entrySet()) {
                    System.out.println("commit " + result.getKey().partition() + " "
                        + result.getValue().map(error -> error.getClass().getSimpleName()).orElse("ok"));
                }
            }
        }
        System.out.println("done " + finished);
    }

    private static AcknowledgeType typeFor(ConsumerRecord<String, String> record, Map<String, Integer> renewed) {
        String value = record.value();
        if (value.startsWith("release") && record.deliveryCount().orElse((short) 1) == 1) {
            return AcknowledgeType.RELEASE;
        }
        if (value.startsWith("reject")) {
            return AcknowledgeType.REJECT;
        }
        if (value.startsWith("renew") && renewed.merge(value, 1, Integer::sum) == 1) {
            return AcknowledgeType.RENEW;
        }
        return AcknowledgeType.ACCEPT;
    }
}
