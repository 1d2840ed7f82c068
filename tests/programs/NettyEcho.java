import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpRequest;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpClientCodec;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import java.security.MessageDigest;
import java.util.concurrent.CompletableFuture;

/** Netty. "server": an echo, and an HTTP server that answers with what it was sent, on the next port. "client ADDRESS": prints
 * checksums that depend on nothing but this file. "forever ADDRESS". */
public class NettyEcho {
    static final int PORT = 8300;
    static final int BYTES = 4_000_000;
    static final EventLoopGroup loops = new NioEventLoopGroup(2);

    public static void main(String[] words) throws Exception {
        // The loops' threads would outlive it.
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        switch (words[0]) {
            case "server" -> server();
            case "client" -> {
                System.out.println("echo " + echoes(words[1], 6));
                System.out.println("http " + requests(words[1], 4));
                loops.shutdownGracefully().sync();
            }
            default -> {
                while (true) echoes(words[1], 3);
            }
        }
    }

    static void server() throws Exception {
        Channel http = listen(PORT + 1, channel -> channel.pipeline()
            .addLast(new HttpServerCodec(), new HttpObjectAggregator(2 * BYTES), new Answers()));
        Channel echo = listen(PORT, channel -> channel.pipeline().addLast(new Echo()));
        echo.closeFuture().sync();
        http.close();
    }

    interface Pipeline {
        void set(SocketChannel channel) throws Exception;
    }

    static ChannelInitializer<SocketChannel> initializer(Pipeline pipeline) {
        return new ChannelInitializer<>() {
            @Override
            protected void initChannel(SocketChannel channel) throws Exception {
                pipeline.set(channel);
            }
        };
    }

    static Channel listen(int port, Pipeline pipeline) throws Exception {
        return new ServerBootstrap().group(loops).channel(NioServerSocketChannel.class)
            .childHandler(initializer(pipeline)).bind("0.0.0.0", port).sync().channel();
    }

    static Channel connect(String address, int port, Pipeline pipeline) throws Exception {
        return new Bootstrap().group(loops).channel(NioSocketChannel.class).option(ChannelOption.TCP_NODELAY, true)
            .handler(initializer(pipeline)).connect(address, port).sync().channel();
    }

    /** Stops reading while the peer does not. */
    static class Echo extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            context.write(message, context.voidPromise());
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
            context.channel().config().setAutoRead(context.channel().isWritable());
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext context) {
            context.channel().config().setAutoRead(context.channel().isWritable());
            context.fireChannelWritabilityChanged();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            context.close();
        }
    }

    static class Answers extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            FullHttpRequest request = (FullHttpRequest) message;
            FullHttpResponse answer =
                new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, HttpResponseStatus.OK, request.content());
            HttpUtil.setContentLength(answer, request.content().readableBytes());
            context.writeAndFlush(answer);
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            context.close();
        }
    }

    static byte[] pattern(int seed, int length) {
        byte[] bytes = new byte[length];
        for (int place = 0; place < length; place++) bytes[place] = (byte) (place * 31 + seed * 17 + (place >> 10));
        return bytes;
    }

    static String digest(byte[] bytes) throws Exception {
        byte[] sum = MessageDigest.getInstance("SHA-256").digest(bytes);
        return String.format("%02x%02x%02x%02x%02x%02x", sum[0], sum[1], sum[2], sum[3], sum[4], sum[5]);
    }

    /** Collects so many bytes. */
    static class Collects extends ChannelInboundHandlerAdapter {
        final CompletableFuture<byte[]> all = new CompletableFuture<>();
        final ByteBuf parts = Unpooled.buffer(BYTES);

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf part = (ByteBuf) message;
            parts.writeBytes(part);
            part.release();
            if (parts.readableBytes() == BYTES) all.complete(parts.array());
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            all.completeExceptionally(new Exception("an early end"));
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            all.completeExceptionally(cause);
        }
    }

    /** Several connections at once, each in pieces of many sizes. */
    static String echoes(String address, int count) throws Exception {
        Collects[] found = new Collects[count];
        Channel[] channels = new Channel[count];
        for (int number = 0; number < count; number++) {
            Collects collects = found[number] = new Collects();
            channels[number] = connect(address, PORT, channel -> channel.pipeline().addLast(collects));
            byte[] sent = pattern(number, BYTES);
            for (int from = 0, length = 1; from < BYTES; from += length, length = Math.min(length * 3 % 70_001 + 1, BYTES - from))
                channels[number].write(Unpooled.wrappedBuffer(sent, from, Math.min(length, BYTES - from)));
            channels[number].flush();
        }
        StringBuilder text = new StringBuilder();
        for (int number = 0; number < count; number++) {
            text.append(digest(found[number].all.get())).append(' ');
            channels[number].close().sync();
        }
        return text.toString();
    }

    /** Answers to requests, one after the other on each connection. */
    static class Asks extends ChannelInboundHandlerAdapter {
        final CompletableFuture<byte[]> last = new CompletableFuture<>();
        final MessageDigest sums;
        int left;

        Asks(int count) throws Exception {
            left = count;
            sums = MessageDigest.getInstance("SHA-256");
        }

        void ask(ChannelHandlerContext context) {
            byte[] body = pattern(left, 10 + left * left * 97);
            DefaultFullHttpRequest request =
                new DefaultFullHttpRequest(HttpVersion.HTTP_1_1, HttpMethod.POST, "/", Unpooled.wrappedBuffer(body));
            HttpUtil.setContentLength(request, body.length);
            context.writeAndFlush(request);
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            ask(context);
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            FullHttpResponse answer = (FullHttpResponse) message;
            sums.update(answer.content().nioBuffer());
            answer.release();
            if (--left > 0) ask(context);
            else last.complete(sums.digest());
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            last.completeExceptionally(cause);
        }
    }

    static String requests(String address, int count) throws Exception {
        StringBuilder text = new StringBuilder();
        Asks[] asks = new Asks[count];
        Channel[] channels = new Channel[count];
        for (int number = 0; number < count; number++) {
            Asks one = asks[number] = new Asks(100);
            channels[number] = connect(address, PORT + 1, channel -> channel.pipeline()
                .addLast(new HttpClientCodec(), new HttpObjectAggregator(2 * BYTES), one));
        }
        for (int number = 0; number < count; number++) {
            text.append(digest(asks[number].last.get())).append(' ');
            channels[number].close().sync();
        }
        return text.toString();
    }
}
