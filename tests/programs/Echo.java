import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.util.Iterator;

/** "server": an echo by a selector. "client ADDRESS": prints checksums that depend on nothing but this file.
 * "forever ADDRESS". */
public class Echo {
    static final int PORT = 8100;
    static final int BYTES = 6_000_000;

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "server" -> server();
            case "client" -> {
                InetSocketAddress address = new InetSocketAddress(words[1], PORT);
                System.out.println("channel " + channel(address));
                System.out.println("selector " + selector(address, 5));
                System.out.println("stream " + stream(address));
            }
            default -> {
                while (true) selector(new InetSocketAddress(words[1], PORT), 3);
            }
        }
    }

    static void server() throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("0.0.0.0", PORT));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel accepted = listener.accept();
                    accepted.configureBlocking(false);
                    accepted.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(100_000));
                    continue;
                }
                SocketChannel channel = (SocketChannel) key.channel();
                try {
                    echo(key, channel, (ByteBuffer) key.attachment());
                } catch (java.io.IOException error) {
                    channel.close();
                }
            }
        }
    }

    static void echo(SelectionKey key, SocketChannel channel, ByteBuffer bytes) throws Exception {
        boolean ended = false;
        if (key.isReadable()) ended = channel.read(bytes) < 0;
        bytes.flip();
        channel.write(bytes);
        boolean left = bytes.hasRemaining();
        bytes.compact();
        if (ended && !left) channel.close();
        else key.interestOps((left ? SelectionKey.OP_WRITE : 0)
            | (bytes.hasRemaining() && !ended ? SelectionKey.OP_READ : 0));
    }

    static byte[] pattern(int seed) {
        byte[] bytes = new byte[BYTES];
        for (int place = 0; place < BYTES; place++) bytes[place] = (byte) (place * 31 + seed * 17 + (place >> 10));
        return bytes;
    }

    static String digest(byte[] bytes) throws Exception {
        byte[] sum = MessageDigest.getInstance("SHA-256").digest(bytes);
        return String.format("%02x%02x%02x%02x%02x%02x", sum[0], sum[1], sum[2], sum[3], sum[4], sum[5]);
    }

    /** A blocking channel, gathering writes, a thread that writes and one that reads. */
    static String channel(InetSocketAddress address) throws Exception {
        try (SocketChannel channel = SocketChannel.open(address)) {
            byte[] sent = pattern(1);
            Thread writer = new Thread(() -> {
                try {
                    ByteBuffer[] pieces = {ByteBuffer.wrap(sent, 0, 1000), ByteBuffer.wrap(sent, 1000, BYTES - 1000)};
                    while (pieces[1].hasRemaining()) channel.write(pieces);
                    channel.shutdownOutput();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            writer.start();
            ByteBuffer received = ByteBuffer.allocate(BYTES + 1);
            while (channel.read(received) >= 0) { }
            writer.join();
            received.flip();
            byte[] found = new byte[received.remaining()];
            received.get(found);
            return digest(found);
        }
    }

    /** Several channels of one selector, connected without waiting. */
    static String selector(InetSocketAddress address, int count) throws Exception {
        Selector selector = Selector.open();
        ByteBuffer[] sent = new ByteBuffer[count];
        ByteBuffer[] received = new ByteBuffer[count];
        for (int number = 0; number < count; number++) {
            sent[number] = ByteBuffer.wrap(pattern(number));
            received[number] = ByteBuffer.allocate(BYTES);
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            int wanted = channel.connect(address) ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_CONNECT;
            channel.register(selector, wanted, number);
        }
        int open = count;
        while (open > 0) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                int number = (Integer) key.attachment();
                SocketChannel channel = (SocketChannel) key.channel();
                if (key.isConnectable() && channel.finishConnect()) {
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (key.isWritable()) {
                    channel.write(sent[number]);
                    if (!sent[number].hasRemaining()) key.interestOps(SelectionKey.OP_READ);
                }
                if (key.isReadable() && channel.read(received[number]) < 0) throw new Exception("an early end");
                if (!received[number].hasRemaining()) {
                    channel.close();
                    open--;
                }
            }
        }
        StringBuilder text = new StringBuilder();
        for (ByteBuffer buffer : received) text.append(digest(buffer.array())).append(' ');
        return text.toString();
    }

    /** The old way, with a time-out. */
    static String stream(InetSocketAddress address) throws Exception {
        try (Socket socket = new Socket()) {
            socket.connect(address, 5000);
            socket.setSoTimeout(300);
            try {
                socket.getInputStream().read();
                throw new Exception("something came from nowhere");
            } catch (java.net.SocketTimeoutException expected) {
                socket.setSoTimeout(30_000);
            }
            byte[] sent = pattern(9);
            OutputStream out = socket.getOutputStream();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            byte[] found = new byte[BYTES];
            for (int first = 0; first < BYTES; first += 50_000) {
                out.write(sent, first, 50_000);
                in.readFully(found, first, 50_000);
            }
            return digest(found);
        }
    }
}
