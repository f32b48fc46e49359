import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one Java process (tests/support/kafka/tools.py).
 *
 * Each line of standard input is a run: {"tool": CLASS, "arguments": [...], "typed": TEXT, "seconds": N}; each line of
 * standard output is what came of it: {"exit": CODE, "output": TEXT, "errors": TEXT}. The class's own main is called,
 * with standard input, output and error of its own. A run ends as a process would: at the first call of Exit, or when
 * main returns; an exception that leaves main is printed and exits with 1; then what was registered for the
 * shutdown runs. A tool that takes longer than its time ends this process.
 */
public final class KafkaTools {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Leaves main, as Exit does where it ends the process; an Error, for tools catch exceptions. */
    private static final class Exited extends Error {
        private static final long serialVersionUID = 1L;
    }

    /** One call of a tool's main. */
    private static final class Run {
        private final ByteArrayOutputStream output = new ByteArrayOutputStream();
        private final ByteArrayOutputStream errors = new ByteArrayOutputStream();
        private final List<Runnable> hooks = new ArrayList<>();
        private Integer code;
        private boolean isEnding;

        private synchronized void exit(int wanted, String message) {
            if (code == null) {
                code = wanted;
                if (message != null) {
                    System.err.println(message);
                }
                // What a tool prints after its exit no process would have printed.
                System.setOut(new PrintStream(new ByteArrayOutputStream()));
                System.setErr(new PrintStream(new ByteArrayOutputStream()));
            }
            if (!isEnding) {
                throw new Exited();
            }
        }

        private void main(String tool, String[] arguments) {
            try {
                Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (InvocationTargetException thrown) {
                if (code == null) {
                    System.err.print("Exception in thread \"main\" ");
                    thrown.getCause().printStackTrace();
                    code = 1;
                }
            } catch (ReflectiveOperationException missing) {
                missing.printStackTrace();
                code = -1;
            }
        }

        private void end() {
            isEnding = true;
            PrintStream still = new PrintStream(output, true, StandardCharsets.UTF_8);
            System.setOut(still);
            hooks.forEach(Runnable::run);
            still.flush();
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader runs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = runs.readLine(); line != null; line = runs.readLine()) {
            answers.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> run(JsonNode wanted) throws InterruptedException {
        List<String> arguments = new ArrayList<>();
        wanted.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        Run run = new Run();
        System.setIn(new ByteArrayInputStream(wanted.get("typed").asText().getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(run.output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(run.errors, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(run::exit);
        Exit.setHaltProcedure(run::exit);
        Exit.setShutdownHookAdder((name, hook) -> run.hooks.add(hook));
        Thread thread = new Thread(() -> run.main(wanted.get("tool").asText(), arguments.toArray(String[]::new)));
        thread.setDaemon(true);
        thread.start();
        thread.join(wanted.get("seconds").asLong() * 1000);
        Map<String, Object> found = new LinkedHashMap<>();
        if (thread.isAlive()) {
            StringBuilder where = new StringBuilder();
            for (StackTraceElement element : thread.getStackTrace()) {
                where.append(element).append('\n');
            }
            found.put("stuck", where.toString());
        } else {
            run.end();
        }
        found.put("exit", run.code == null ? 0 : run.code);
        found.put("output", run.output.toString(StandardCharsets.UTF_8));
        found.put("errors", run.errors.toString(StandardCharsets.UTF_8));
        return found;
    }
}
