/* A client written from pd_abi.h alone, which sends a message to itself, and then breaks the protocol in one way.
 *
 *     hostile SOCKET ATTACK
 *
 * Prints the driver's reason for cutting it off. Ends with 1 if anything contradicts the header. */
#define _GNU_SOURCE
#include "pd_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            exit(1); \
        } \
    } while (0)

struct memory {
    int fd;
    uint64_t bytes;
    unsigned char *at;
};

static int attach_socket, doorbell;
static struct memory control, status, sent, received[64];
static uint64_t requests, events;

static uint64_t load64(struct memory *memory, uint64_t at)
{
    return atomic_load((_Atomic uint64_t *)(memory->at + at));
}

static uint32_t load32(struct memory *memory, uint64_t at)
{
    return atomic_load((_Atomic uint32_t *)(memory->at + at));
}

static void store64(uint64_t at, uint64_t value)
{
    atomic_store((_Atomic uint64_t *)(control.at + at), value);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static void map(struct memory *memory, int protection)
{
    memory->at = mmap(NULL, memory->bytes, protection, MAP_SHARED, memory->fd, 0);
    CHECK(memory->at != MAP_FAILED);
}

static void say(struct pd_abi_frame frame)
{
    frame.magic = PD_ABI_MAGIC;
    frame.version = PD_ABI_VERSION;
    CHECK(send(attach_socket, &frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame);
}

/* Receives the next frame, with up to two descriptors. Returns false when the driver has hung up. */
static bool hear(struct pd_abi_frame *frame, int fds[2])
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(4 * sizeof(int))];
    struct iovec piece = {frame, sizeof *frame};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t got = recvmsg(attach_socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == ECONNRESET) /* once, if the driver had not read everything */
        got = recvmsg(attach_socket, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0)
        return false;
    CHECK(got == sizeof *frame && frame->magic == PD_ABI_MAGIC && frame->version == PD_ABI_VERSION);
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights)
        memcpy(fds, CMSG_DATA(rights), 2 * sizeof(int) < rights->cmsg_len - CMSG_LEN(0) ? 2 * sizeof(int) : rights->cmsg_len - CMSG_LEN(0));
    return true;
}

/* Keeps an unrequested receive region. Returns whether the frame was one. */
static bool keep(const struct pd_abi_frame *frame, const int fds[2])
{
    if (frame->kind != PD_ABI_FRAME_RECEIVE_REGION)
        return false;
    CHECK(frame->id < sizeof received / sizeof *received);
    received[frame->id] = (struct memory){fds[0], frame->bytes, NULL};
    CHECK(mmap(NULL, frame->bytes, PROT_WRITE, MAP_SHARED, fds[0], 0) == MAP_FAILED);
    map(&received[frame->id], PROT_READ);
    return true;
}

static struct pd_abi_frame ask(struct pd_abi_frame frame, uint32_t expected, int fds[2])
{
    struct pd_abi_frame answer;
    say(frame);
    do
        CHECK(hear(&answer, fds));
    while (keep(&answer, fds));
    CHECK(answer.kind == expected);
    return answer;
}

static void attach(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fds[2];

    CHECK(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    attach_socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(connect(attach_socket, (struct sockaddr *)&address, sizeof address) == 0);
    ask((struct pd_abi_frame){.kind = PD_ABI_FRAME_HELLO}, PD_ABI_FRAME_WELCOME, fds);
    control = (struct memory){fds[0], PD_ABI_LAYOUT_REGION_BYTES, NULL};
    status = (struct memory){fds[1], PD_ABI_LAYOUT_REGION_BYTES, NULL};
    map(&control, PROT_READ | PROT_WRITE);
    map(&status, PROT_READ);
    CHECK(mmap(NULL, status.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, status.fd, 0) == MAP_FAILED);
    CHECK(mprotect(status.at, status.bytes, PROT_READ | PROT_WRITE) != 0);
    CHECK(load64(&status, PD_ABI_HEADER_MAGIC) == PD_ABI_MAGIC);
    CHECK(load32(&status, PD_ABI_HEADER_VERSION) == PD_ABI_VERSION);
    CHECK(fcntl(control.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0);
    ask((struct pd_abi_frame){.kind = PD_ABI_FRAME_MAPPED, .id = PD_ABI_REGION_CONTROL}, PD_ABI_FRAME_READY, fds);
    CHECK(mmap(NULL, control.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control.fd, 0) == MAP_FAILED);
    CHECK(ask((struct pd_abi_frame){.kind = PD_ABI_FRAME_CHANNEL}, PD_ABI_FRAME_CHANNEL, fds).id == 0);
    doorbell = fds[0];
}

static uint64_t channel(uint64_t word)
{
    return PD_ABI_LAYOUT_CHANNELS_OFFSET + word;
}

static uint64_t line(uint32_t socket, uint64_t word)
{
    uint64_t slot = socket & ((1u << PD_ABI_ID_SLOT_BITS) - 1);
    return PD_ABI_LAYOUT_SOCKETS_OFFSET + slot * PD_ABI_LAYOUT_SOCKET_STRIDE + word;
}

static void ring(void)
{
    uint64_t one = 1;
    CHECK(write(doorbell, &one, sizeof one) == sizeof one);
}

static void post(struct pd_abi_request request)
{
    uint64_t place = requests % PD_ABI_REQUEST_RING_ENTRIES * PD_ABI_REQUEST_BYTES;
    while (requests - load64(&status, channel(PD_ABI_CHANNEL_STATUS_REQUEST_CONSUMER)) >= PD_ABI_REQUEST_RING_ENTRIES)
        nap();
    memcpy(control.at + channel(PD_ABI_CHANNEL_CONTROL_REQUESTS) + place, &request, sizeof request);
    store64(channel(PD_ABI_CHANNEL_CONTROL_REQUEST_PRODUCER), ++requests);
    atomic_thread_fence(memory_order_seq_cst);
    if (load32(&status, channel(PD_ABI_CHANNEL_STATUS_NEED_WAKEUP)))
        ring();
}

/* Posts a request and returns the answer to it. */
static struct pd_abi_event call(struct pd_abi_request request)
{
    struct pd_abi_event event;
    request.tag = 7;
    post(request);
    while (load64(&status, channel(PD_ABI_CHANNEL_STATUS_EVENT_PRODUCER)) == events)
        nap();
    uint64_t place = events % PD_ABI_EVENT_RING_ENTRIES * PD_ABI_EVENT_BYTES;
    memcpy(&event, status.at + channel(PD_ABI_CHANNEL_STATUS_EVENTS) + place, sizeof event);
    store64(channel(PD_ABI_CHANNEL_CONTROL_EVENT_CONSUMER), ++events);
    CHECK(event.kind == PD_ABI_EVENT_ANSWER && event.tag == 7 && event.error == 0);
    return event;
}

static struct pd_abi_request numbers(uint8_t operation, uint32_t socket, uint64_t first, uint64_t second)
{
    struct pd_abi_request request = {.operation = operation, .socket = socket};
    memcpy(request.payload, &first, 8);
    memcpy(request.payload + 8, &second, 8);
    return request;
}

/* Takes the line of a new socket into use: cleared, its generation last. */
static uint32_t take(uint32_t socket)
{
    for (uint64_t word = 0; word < PD_ABI_SOCKET_CONTROL_GENERATION; word += 8)
        store64(line(socket, word), 0);
    store64(line(socket, PD_ABI_SOCKET_CONTROL_GENERATION), socket >> PD_ABI_ID_SLOT_BITS);
    return socket;
}

static uint32_t open_socket(void)
{
    return take(call((struct pd_abi_request){.operation = PD_ABI_OP_SOCKET, .family = PD_ABI_FAMILY_V4}).socket);
}

static uint64_t span(uint64_t region, uint64_t offset)
{
    return region << PD_ABI_SPAN_OFFSET_BITS | offset;
}

/* Sends a message to itself over a connection and compares what arrives. Returns the sending socket. */
static uint32_t talk(uint32_t *receiver)
{
    static const char text[] = "written from pd_abi.h alone";
    struct pd_abi_request loopback = {.operation = PD_ABI_OP_BIND, .family = PD_ABI_FAMILY_V4, .payload = {127, 0, 0, 1}};
    struct pd_abi_frame region;
    int fds[2];

    uint32_t listener = loopback.socket = open_socket();
    loopback.port = call(loopback).port;
    call(numbers(PD_ABI_OP_LISTEN, listener, 8, 0));
    loopback.operation = PD_ABI_OP_CONNECT;
    uint32_t sender = loopback.socket = open_socket();
    call(loopback);
    *receiver = call((struct pd_abi_request){.operation = PD_ABI_OP_ACCEPT, .socket = listener}).socket;
    store64(line(listener, PD_ABI_SOCKET_CONTROL_RECV_CONSUMER), 1);
    take(*receiver);

    region = ask((struct pd_abi_frame){.kind = PD_ABI_FRAME_SEND_REGION, .bytes = PD_ABI_PAGE_BYTES}, PD_ABI_FRAME_SEND_REGION, fds);
    sent = (struct memory){fds[0], region.bytes, NULL};
    map(&sent, PROT_READ | PROT_WRITE);
    ask((struct pd_abi_frame){.kind = PD_ABI_FRAME_MAPPED, .id = region.id}, PD_ABI_FRAME_READY, fds);
    CHECK(region.id == 0);
    memcpy(sent.at + 100, text, sizeof text);
    post(numbers(PD_ABI_OP_SEND, sender, span(0, 100), sizeof text));
    while (load64(&status, line(*receiver, PD_ABI_SOCKET_STATUS_RECV_PRODUCER)) < sizeof text)
        nap();
    uint32_t number = load32(&status, line(*receiver, PD_ABI_SOCKET_STATUS_RING_REGION));
    uint64_t page = load32(&status, line(*receiver, PD_ABI_SOCKET_STATUS_RING_PAGE));
    CHECK(number < sizeof received / sizeof *received);
    while (!received[number].at) {
        struct pd_abi_frame frame;
        CHECK(hear(&frame, fds) && keep(&frame, fds));
    }
    CHECK(memcmp(received[number].at + page * PD_ABI_PAGE_BYTES, text, sizeof text) == 0);
    store64(line(*receiver, PD_ABI_SOCKET_CONTROL_RECV_CONSUMER), sizeof text);
    return sender;
}

static void attack(const char *name, uint32_t sender, uint32_t receiver)
{
    if (!strcmp(name, "operation")) {
        post((struct pd_abi_request){.operation = 255});
    } else if (!strcmp(name, "request-ring")) {
        store64(channel(PD_ABI_CHANNEL_CONTROL_REQUEST_PRODUCER), requests + PD_ABI_REQUEST_RING_ENTRIES + 1);
        ring();
    } else if (!strcmp(name, "event-ring")) {
        store64(channel(PD_ABI_CHANNEL_CONTROL_EVENT_CONSUMER), events + PD_ABI_EVENT_RING_ENTRIES + 1);
        for (uint64_t count = 0; count <= PD_ABI_EVENT_RING_ENTRIES; count++)
            post((struct pd_abi_request){.operation = PD_ABI_OP_ADOPT, .socket = UINT32_MAX});
    } else if (!strcmp(name, "span")) {
        post(numbers(PD_ABI_OP_SEND, sender, span(0, sent.bytes), 1));
    } else if (!strcmp(name, "region")) {
        post(numbers(PD_ABI_OP_SEND, sender, span(PD_ABI_REGIONS_MAX - 1, 0), 1));
    } else if (!strcmp(name, "length")) {
        post(numbers(PD_ABI_OP_SEND, sender, span(0, 0), PD_ABI_MESSAGE_BYTES_MAX + 1));
    } else if (!strcmp(name, "file")) {
        post((struct pd_abi_request){.operation = PD_ABI_OP_SEND_FILE, .socket = sender, .tag = 99, .payload = {[8] = 1}});
    } else if (!strcmp(name, "given-back")) {
        store64(line(receiver, PD_ABI_SOCKET_CONTROL_RECV_CONSUMER), UINT64_MAX);
        post(numbers(PD_ABI_OP_SPACE, receiver, 0, 0));
        post(numbers(PD_ABI_OP_SEND, sender, span(0, 0), 1));
    } else {
        CHECK(!strcmp(name, "frame"));
        say((struct pd_abi_frame){.kind = PD_ABI_FRAME_WELCOME});
    }
}

int main(int argc, char **argv)
{
    struct pd_abi_frame frame;
    uint32_t sender, receiver;
    int fds[2];

    CHECK(argc == 3);
    alarm(60);
    attach(argv[1]);
    sender = talk(&receiver);
    attack(argv[2], sender, receiver);
    while (hear(&frame, fds)) {
        if (frame.kind == PD_ABI_FRAME_GOODBYE)
            printf("%.*s\n", (int)sizeof frame.text, (const char *)frame.text);
        else
            keep(&frame, fds);
    }
    return 0;
}
