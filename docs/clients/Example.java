import java.io.DataInputStream;
import java.io.IOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Pattern;

/**
 * Reserves ids from allocnode with the JDK alone: the NATS protocol over a socket, without TLS or passwords. A program that
 * has a JSON library reads the answers with it; the patterns here do because these answers have no nested or escaped values
 * where they look.
 *
 * <pre>java Example.java HOST:PORT[,HOST:PORT...] SEQUENCE COUNT [BODY]</pre>
 *
 * It prints each request's body before it sends it: a program stores it there. With BODY, one that was stored, it sends
 * that first: it is answered with the range that it was given, if it was given one.
 */
public class Example {
    /** Every id fits a long. The end of a range that holds 2^63-1 would not: it is start and count that are kept. */
    record Range(long start, long count) {}

    static final Set<String> AGAIN = Set.of("unavailable", "fenced", "unknown_outcome"); // every other code is final

    final String[] servers;
    String cluster; // of the first answer: no other is believed
    long seen; // highest seq of any answer

    Example(String[] servers) {
        this.servers = servers;
    }

    /** The body of a new reservation. Store it before the first send, and send that again after a crash. */
    String prepare(long count) throws Exception {
        if (seen == 0) { // since 0 is none: then a key that the cluster has forgotten would be taken for a new one
            ask("alloc.list", "{\"limit\":1}", "sequences", 60_000);
        }
        return String.format("{\"count\":%d,\"key\":\"%s\",\"ids\":\"string\",\"since\":%d}", count, newKey(), seen);
    }

    /** The range of a body that prepare has made, in this process or in one before. */
    Range reserve(String sequence, String body) throws Exception {
        String answer = ask("alloc.reserve." + sequence, body, "start", 60_000);
        return new Range(Long.parseLong(field(answer, "start")), Long.parseLong(field(answer, "count")));
    }

    /** The answer that has the field wanted. */
    String ask(String subject, String body, String wanted, long withinMillis) throws Exception {
        long deadline = System.nanoTime() + withinMillis * 1_000_000;
        String last = "";
        for (int attempt = 0; ; attempt++) {
            try {
                String answer = sendOnce(servers[attempt % servers.length], subject, body, wanted); // the same bytes
                String from = field(answer, "cluster");
                if (cluster != null && from != null && !from.equals(cluster)) {
                    throw new IllegalStateException("another cluster answers: " + answer);
                }
                cluster = from != null ? from : cluster;
                if (field(answer, wanted) != null) {
                    seen = Math.max(seen, Long.parseLong(field(answer, "seq")));
                    return answer;
                }
                last = answer;
                if (!AGAIN.contains(field(answer, "code"))) {
                    throw new IllegalStateException(answer);
                }
            } catch (IOException e) { // not connected, no answer in time
                last = e.toString();
            }
            if (System.nanoTime() - deadline > 0) {
                throw new IOException("it may have happened; ask again with " + body + ": " + last);
            }
            double most = Math.min(50 * Math.pow(2, attempt), 2000);
            Thread.sleep((long) (most * ThreadLocalRandom.current().nextDouble(0.5, 1)));
        }
    }

    /** Sends one try and returns its answer. What has neither wanted nor error is a captured subject's, and passed over. */
    static String sendOnce(String server, String subject, String body, String wanted) throws IOException {
        int colon = server.lastIndexOf(':');
        try (Socket conn = new Socket(server.substring(0, colon), Integer.parseInt(server.substring(colon + 1)))) {
            conn.setSoTimeout(5000);
            String inbox = "_INBOX." + newKey();
            byte[] payload = body.getBytes(StandardCharsets.UTF_8);
            send(conn, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true,\"name\":\"Example.java\"}\r\n"
                    + "SUB " + inbox + " 1\r\nPUB " + subject + " " + inbox + " " + payload.length + "\r\n" + body + "\r\n");
            DataInputStream in = new DataInputStream(conn.getInputStream());
            while (true) {
                String[] line = readLine(in).split(" +");
                switch (line[0]) {
                    case "PING" -> send(conn, "PONG\r\n");
                    case "-ERR" -> throw new IOException(String.join(" ", line));
                    case "MSG", "HMSG" -> { // HMSG has the length of its headers before that of the whole
                        byte[] all = new byte[Integer.parseInt(line[line.length - 1])];
                        in.readFully(all);
                        in.readFully(new byte[2]);
                        int skip = line[0].equals("HMSG") ? Integer.parseInt(line[line.length - 2]) : 0;
                        String answer = new String(all, skip, all.length - skip, StandardCharsets.UTF_8);
                        if (answer.isEmpty()) {
                            throw new IOException("no node serves"); // the server says so: status 503, no body
                        }
                        if (field(answer, wanted) != null || answer.startsWith("{\"error\":")) {
                            return answer;
                        }
                    }
                    default -> { }
                }
            }
        }
    }

    static void send(Socket conn, String text) throws IOException {
        conn.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
    }

    static String readLine(DataInputStream in) throws IOException {
        StringBuilder line = new StringBuilder();
        for (byte c; (c = in.readByte()) != '\n'; ) { // EOFException at the connection's end
            line.append((char) c);
        }
        return line.toString().trim();
    }

    static String field(String json, String name) {
        var m = Pattern.compile("\"" + name + "\":\"?([^\",}]*)").matcher(json);
        return m.find() ? m.group(1) : null;
    }

    static String newKey() {
        byte[] b = new byte[16];
        new SecureRandom().nextBytes(b);
        return HexFormat.of().formatHex(b);
    }

    public static void main(String[] args) throws Exception {
        Example allocnode = new Example(args[0].split(","));
        String stored = args.length > 3 ? args[3] : null;
        for (boolean more = stored == null; ; more = true) { // what was stored, then one more
            String body = more ? allocnode.prepare(Long.parseLong(args[2])) : stored;
            System.out.println(args[1] + ": sending " + body);
            Range r = allocnode.reserve(args[1], body);
            System.out.printf("%s: %d to %d%n", args[1], r.start(), r.start() + r.count() - 1);
            if (more) {
                return;
            }
        }
    }
}
