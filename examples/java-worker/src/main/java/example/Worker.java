package example;

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A worker of a share group: accepts each order that it processed, and releases an order that failed. */
public final class Worker {
    public static void main(String[] arguments) {
        String bootstrap = arguments.length > 0 ? arguments[0] : "localhost:9092";
        String topic = arguments.length > 1 ? arguments[1] : "orders";
        String group = arguments.length > 2 ? arguments[2] : "shipping";
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");

        var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        Thread worker = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                worker.join();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
        try (consumer) { // close() releases what was fetched but not acknowledged
            consumer.subscribe(List.of(topic));
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    consumer.acknowledge(record, outcome(record));
                }
                // Waits until the acknowledgements are on disk.
                consumer.commitSync().forEach((partition, error) -> error.ifPresent(problem ->
                    System.out.println(partition + ": not acknowledged, delivered again later: " + problem)));
            }
        } catch (WakeupException stopped) {
            // The process was asked to end.
        }
    }

    private static AcknowledgeType outcome(ConsumerRecord<String, String> record) {
        try {
            process(record.value());
            return AcknowledgeType.ACCEPT;
        } catch (RuntimeException problem) {
            System.out.println("failed at delivery " + record.deliveryCount().orElse((short) 1) + ": " + problem.getMessage());
            return AcknowledgeType.RELEASE;
        }
    }

    /** The work. An exception means that this order is delivered again. */
    private static void process(String order) {
        if (order == null || order.isEmpty()) {
            throw new IllegalArgumentException("an order without a text");
        }
        System.out.println("processed " + order);
    }
}
