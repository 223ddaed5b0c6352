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
 * <pre>java Example.java HOST:PORT[,HOST:PORT...] SEQUENCE COUNT [KEY]</pre>
 */
public class Example {
    record Range(long start, long end) {} // half-open; every id fits a long

    static final Set<String> AGAIN = Set.of("unavailable", "fenced", "unknown_outcome"); // every other code is final

    final String[] servers;
    String cluster; // of the first answer: no other is believed
    long seen; // highest seq of any answer

    Example(String[] servers) {
        this.servers = servers;
    }

    Range reserve(String sequence, long count, String key, long withinMillis) throws Exception {
        // The same bytes at each try.
        String body = String.format("{\"count\":%d,\"key\":\"%s\",\"ids\":\"string\",\"since\":%d}", count, key, seen);
        long deadline = System.nanoTime() + withinMillis * 1_000_000;
        String last = "";
        for (int attempt = 0; ; attempt++) {
            try {
                String answer = ask(servers[attempt % servers.length], "alloc.reserve." + sequence, body);
                String from = field(answer, "cluster");
                if (cluster != null && from != null && !from.equals(cluster)) {
                    throw new IllegalStateException("another cluster answers: " + answer);
                }
                cluster = from != null ? from : cluster;
                if (field(answer, "start") != null) {
                    seen = Math.max(seen, Long.parseLong(field(answer, "seq")));
                    return new Range(Long.parseLong(field(answer, "start")), Long.parseLong(field(answer, "end")));
                }
                last = answer;
                if (!AGAIN.contains(field(answer, "code"))) {
                    throw new IllegalStateException(answer);
                }
            } catch (IOException e) { // not connected, no answer in time
                last = e.toString();
            }
            if (System.nanoTime() - deadline > 0) {
                throw new IOException("it may have happened; ask again with the key " + key + ": " + last);
            }
            double most = Math.min(50 * Math.pow(2, attempt), 2000);
            Thread.sleep((long) (most * ThreadLocalRandom.current().nextDouble(0.5, 1)));
        }
    }

    /** Sends one try and returns its answer. What has neither start nor error is a captured subject's, and passed over. */
    static String ask(String server, String subject, String body) throws IOException {
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
                        if (field(answer, "start") != null || answer.startsWith("{\"error\":")) {
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
        String given = args.length > 3 ? args[3] : newKey();
        for (String key : new String[] {given, newKey()}) { // one with the key that was given, one with a new one
            Range r = allocnode.reserve(args[1], Long.parseLong(args[2]), key, 60_000);
            System.out.printf("%s: %d to %d%n", args[1], r.start(), r.end() - 1);
        }
    }
}
