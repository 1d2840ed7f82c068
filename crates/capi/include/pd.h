/* PipeDevice sockets for C and C++. See pd(7) and the page of each call in section 3.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The calls are the BSD socket calls with a prefix. Those that send and receive copy nothing:
 *
 *   pd_send     takes memory of pd_malloc, which belongs to the driver until the bytes are moved
 *               (pd_buf_refresh tells);
 *   pd_send_with has the caller write where the bytes are sent from;
 *   pd_sendfile has the driver read a file where it can;
 *   pd_forward  sends what another socket has received, with one copy;
 *   pd_recv     returns a pointer to received bytes, which stay there until pd_recv_done.
 *
 * pd_read and pd_write copy, as the BSD calls do.
 *
 * Numbers of sockets and epoll instances are no descriptors: they begin at 0x40000000, which no descriptor reaches.
 *
 * Every call returns -1 (or NULL) and sets errno when it fails; pd_errmsg() then says what failed, on
 * what, and what to do about it. All calls are thread-safe. A forked child starts without sockets.
 */
#ifndef PD_H
#define PD_H

#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Address arguments: in C a pointer to any of these, without a cast. */
#if defined(__GNUC__) && !defined(__cplusplus)
typedef union {
    const struct sockaddr *any;
    const struct sockaddr_in *in;
    const struct sockaddr_in6 *in6;
    const struct sockaddr_storage *storage;
} pd_const_sockaddr_t __attribute__((transparent_union));
typedef union {
    struct sockaddr *any;
    struct sockaddr_in *in;
    struct sockaddr_in6 *in6;
    struct sockaddr_storage *storage;
} pd_sockaddr_t __attribute__((transparent_union));
#else
typedef const struct sockaddr *pd_const_sockaddr_t;
typedef struct sockaddr *pd_sockaddr_t;
#endif

/* domain: AF_INET, AF_INET6; type: SOCK_STREAM, perhaps | SOCK_NONBLOCK; protocol: 0, IPPROTO_TCP. */
int pd_socket(int domain, int type, int protocol);
int pd_bind(int sid, pd_const_sockaddr_t addr, socklen_t addr_len);
int pd_listen(int sid, int backlog);
int pd_accept(int sid, pd_sockaddr_t addr, socklen_t *addr_len);
int pd_accept4(int sid, pd_sockaddr_t addr, socklen_t *addr_len, int flags);
int pd_connect(int sid, pd_const_sockaddr_t addr, socklen_t addr_len);
/* Connect count new sockets, all or none, with few round trips to the driver. flags: 0, SOCK_NONBLOCK. */
int pd_connect_several(pd_const_sockaddr_t addr, socklen_t addr_len, int flags, int *sids, int count);
int pd_shutdown(int sid, int how);
int pd_close(int sid);
int pd_getsockname(int sid, pd_sockaddr_t addr, socklen_t *addr_len);
int pd_getpeername(int sid, pd_sockaddr_t addr, socklen_t *addr_len);

/* Memory to send from. pd_free may be called while sends are in flight. */
void *pd_malloc(size_t size);
int pd_free(void *ptr);

/* Send bytes of one block of pd_malloc. Do not write them until pd_buf_refresh says so. */
ssize_t pd_send(int sid, const void *buf, size_t len);
/* Send what fill writes, at most len bytes, where they are sent from: nothing need be kept. fill says how many it wrote,
 * or -1 if it fails; it returns, and does not use the socket. */
ssize_t pd_send_with(int sid, size_t len, ssize_t (*fill)(void *place, size_t len, void *arg), void *arg);
/* Send at most count bytes of a file from *offset on, or from its position if offset is NULL, and move that on. */
ssize_t pd_sendfile(int sid, int fd, off_t *offset, size_t count);
ssize_t pd_forward(int from, int to, size_t len);
/* Move the buffers that may be written again to the front; return how many they are. */
int pd_buf_refresh(int sid, void **bufs, int n);

/* Point *buf to at most len received bytes. 0: the stream has ended. */
ssize_t pd_recv(int sid, size_t len, void **buf);
/* Give back the first len bytes received and not yet given back. */
int pd_recv_done(int sid, size_t len);

/* Receive into memory of the caller's. flags: MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT. 0: the stream has ended. */
ssize_t pd_read(int sid, void *buf, size_t len);
ssize_t pd_readv(int sid, const struct iovec *iov, int count);
ssize_t pd_recv_into(int sid, void *buf, size_t len, int flags);
/* Send from memory of the caller's, which may be written at once again. */
ssize_t pd_write(int sid, const void *buf, size_t len);
ssize_t pd_writev(int sid, const struct iovec *iov, int count);

/* Level of PipeDevice's own options. */
#define SOL_PD 0x5044
#define PD_NONBLOCK 1 /* int: return EAGAIN instead of waiting */
#define PD_PATH 2     /* char[], read only: "offloaded", "direct" or "kernel" */
#define PD_RECV_SHARED 3 /* int: receive bytes that their sender can still change */

int pd_setsockopt(int sid, int level, int option, const void *value, socklen_t value_len);
int pd_getsockopt(int sid, int level, int option, void *value, socklen_t *value_len);

/* Pipes: packets of a port of the driver, in memory that the program shares with it. Closed by pd_close. A pipe is one
 * thread's at a time: a call beside another on the same pipe fails with EBUSY. */
#define PD_PIPE_RECEIVE 1
#define PD_PIPE_SEND 2
#define PD_PIPE_FORWARD 3
#define PD_PIPE_BYTES 0x10               /* bytes without marks between them, in place of frames */
#define PD_PIPE_SHARE 0x20               /* share frames with pipes of other processes that say so, too */
#define PD_PIPE_NONBLOCK SOCK_NONBLOCK   /* return EAGAIN instead of waiting */

/* Where a frame goes: to the pipe's own port, nowhere, or to port 1, 2, ... of those that the pipe was opened with. */
#define PD_BACK 0
#define PD_DROP 0xffff

/* Zeros stand for the usual: a ring of 512 KiB, and all frames that no other pipe is bound to. */
struct pd_pipe_options {
    size_t ring_bytes; /* a power of two, 32 KiB to 64 MiB */
    /* Frames that the pipe receives: protocol of IPv4, addresses with the bits that count, ports in network order. */
    uint8_t protocol;
    uint8_t source_prefix, destination_prefix;
    uint8_t reserved;
    struct in_addr source, destination;
    in_port_t source_port, destination_port;
};

/* A frame that pd_pipe_recv lends. len and to say what pd_pipe_done does with it in a forwarding pipe. */
struct pd_frame {
    void *data;
    uint32_t len; /* may be made smaller */
    uint16_t to;  /* PD_BACK unless changed */
    uint16_t reserved;
};

/* What this program did with a pipe. Of a pipe of bytes a frame is a piece. */
struct pd_pipe_stat {
    uint64_t ring_bytes;
    uint64_t frames_received, bytes_received;
    uint64_t frames_sent, bytes_sent;
    uint64_t frames_dropped; /* by the program's verdict */
    uint64_t bytes_waiting;  /* announced, neither read nor lent; whole lines of 64 bytes */
    uint64_t bytes_lent;     /* as well */
    uint64_t bytes_free;     /* of the ring, in a sending pipe */
    uint32_t direction;      /* PD_PIPE_RECEIVE, PD_PIPE_SEND or PD_PIPE_FORWARD */
    uint32_t error;          /* errno that the pipe has ended with, or 0 */
};

/* ports: the port's name, then those that verdicts may name, with commas between them. options: NULL for the usual. */
int pd_pipe_open(const char *ports, int flags, const struct pd_pipe_options *options);
/* Lend the next frames, at most max. They stay in place until pd_pipe_done. On a link within a tenant a faulty sender can change them. */
int pd_pipe_recv(int pid, struct pd_frame *frames, int max);
/* Give back the count frames that were lent first; in a forwarding pipe they go where frames says. */
int pd_pipe_done(int pid, const struct pd_frame *frames, int count);
/* Of a pipe of bytes: point *buf to all unread bytes; give back the first len of them. */
ssize_t pd_pipe_peek(int pid, void **buf);
int pd_pipe_consume(int pid, size_t len);
/* Take fewer than len unread bytes for none, in all calls that wait, until some are given back: for a message of which a part is there. */
int pd_pipe_need(int pid, size_t len);
/* Lend len bytes to send; send the first len of them; have the driver see what was sent. */
void *pd_pipe_alloc(int pid, size_t len);
int pd_pipe_commit(int pid, size_t len, unsigned to);
int pd_pipe_flush(int pid);
/* Wait for frames or bytes; for more of them than are there, which a full ring refuses; until room bytes of a sending pipe are free.
 * timeout_ms: -1 waits for ever. */
int pd_pipe_wait(int pid, int timeout_ms);
int pd_pipe_wait_more(int pid, int timeout_ms);
int pd_pipe_wait_room(int pid, size_t room, int timeout_ms);
/* Ask to be told of what is there before what was lent is given back. */
int pd_pipe_prefetch(int pid);
/* A descriptor that becomes readable after pd_pipe_arm has returned 0. It belongs to the pipe; do not read or close it. */
int pd_pipe_fd(int pid);
int pd_pipe_arm(int pid);
int pd_pipe_stat(int pid, struct pd_pipe_stat *stat);

/* As in <sys/epoll.h>, value by value and byte by byte. */
#define PD_EPOLLIN 0x001u
#define PD_EPOLLOUT 0x004u
#define PD_EPOLLERR 0x008u
#define PD_EPOLLHUP 0x010u
#define PD_EPOLLRDHUP 0x2000u
#define PD_EPOLLONESHOT (1u << 30)
#define PD_EPOLLET (1u << 31)

#define PD_EPOLL_CTL_ADD 1
#define PD_EPOLL_CTL_DEL 2
#define PD_EPOLL_CTL_MOD 3

typedef union pd_epoll_data {
    void *ptr;
    int fd;
    uint32_t u32;
    uint64_t u64;
} pd_epoll_data_t;

struct pd_epoll_event {
    uint32_t events;
    pd_epoll_data_t data;
}
#ifdef __x86_64__
__attribute__((packed))
#endif
;

/* flags: 0 or EPOLL_CLOEXEC. Closed by pd_close. */
int pd_epoll_create(int flags);
int pd_epoll_ctl(int epid, int op, int sid, struct pd_epoll_event *event);
/* timeout_ms: -1 waits for ever. */
int pd_epoll_wait(int epid, struct pd_epoll_event *events, int max, int timeout_ms);
/* A descriptor to nest in epoll, poll or select: readable whenever pd_epoll_wait may have something.
 * It belongs to the instance; do not read or close it. */
int pd_epoll_fd(int epid);

/* As poll(2), of sockets, epoll instances and descriptors of the kernel's. */
int pd_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

/* The thread's last failure in a sentence. Valid until the thread's next call. */
const char *pd_errmsg(void);

#ifdef __cplusplus
}
#endif

#endif
