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
