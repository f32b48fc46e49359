import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Kafka's own SimpleAssignor, asked line by line (tests/e2e/share/test_assignor_like_kafka.py).
 *
 * A question is {"topics": {ID: COUNT}, "members": {NAME: {"topics": [ID], "previous": {ID: [PARTITION]}}}}, its answer
 * {NAME: {ID: [PARTITION]}}. Ids are numbers.
 */
public final class AssignShares {
    private static final ObjectMapper JSON = new ObjectMapper();

    private AssignShares() { }

    public static void main(String[] arguments) throws Exception {
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            System.out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            System.out.flush();
        }
    }

    private static Uuid id(String number) {
        return new Uuid(1, Long.parseLong(number));
    }

    private static Map<String, Map<String, Set<Integer>>> answer(JsonNode question) {
        Map<Uuid, Integer> counts = new HashMap<>();
        question.get("topics").fields().forEachRemaining(topic -> counts.put(id(topic.getKey()), topic.getValue().asInt()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        question.get("members").fields().forEachRemaining(member -> {
            Set<Uuid> topics = new HashSet<>();
            member.getValue().get("topics").forEach(topic -> topics.add(id(topic.asText())));
            Map<Uuid, Set<Integer>> previous = new HashMap<>();
            member.getValue().get("previous").fields().forEachRemaining(topic -> {
                Set<Integer> partitions = new HashSet<>();
                topic.getValue().forEach(partition -> partitions.add(partition.asInt()));
                previous.put(id(topic.getKey()), partitions);
            });
            subscriptions.add(topics);
            members.put(member.getKey(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), topics, new Assignment(previous)));
        });
        SubscriptionType type =
            subscriptions.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        GroupAssignment found = new SimpleAssignor().assign(
            new GroupSpecImpl(members, type, Map.of()), new SubscribedTopicDescriber() {
                @Override
                public int numPartitions(Uuid topic) {
                    return counts.getOrDefault(topic, -1);
                }

                @Override
                public Set<String> racksForPartition(Uuid topic, int partition) {
                    return Set.of();
                }
            });
        Map<String, Map<String, Set<Integer>>> answer = new TreeMap<>();
        found.members().forEach((name, assignment) -> {
            Map<String, Set<Integer>> topics = new TreeMap<>();
            assignment.partitions().forEach((topic, partitions) -> {
                if (!partitions.isEmpty()) {
                    topics.put(Long.toString(topic.getLeastSignificantBits()), new TreeSet<>(partitions));
                }
            });
            answer.put(name, topics);
        });
        return answer;
    }
}
