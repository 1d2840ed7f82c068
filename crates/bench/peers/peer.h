/*
 * Interface of a peer library to `pd bench` (crates/bench/src/scheme/shim.rs). One peer has one
 * connection, is used by one thread, and sends and receives messages of at most `message_bytes`.
 * Functions return 0, or -1 with the reason in peer_error(), unless they say otherwise.
 */
#ifndef PD_BENCH_PEER_H
#define PD_BENCH_PEER_H

#include <stddef.h>
#include <sys/types.h>

struct peer;

/*
 * Makes a peer with `depth` send and `depth` receive buffers; NULL on failure. A wait polls for `spin_ns` nanoseconds
 * before it sleeps, yielding in between; -1: by the method of the library's documentation.
 */
struct peer *peer_open(size_t message_bytes, size_t depth, long spin_ns);
/* Writes the own address as a string of at most `len` bytes with its end. */
int peer_address(struct peer *peer, char *text, size_t len);
/* Sets the other side's address. */
int peer_connect(struct peer *peer, const char *text);
/* Returns the next send buffer, once its last message has left it; NULL on failure. */
void *peer_reserve(struct peer *peer);
/* Sends `len` bytes of the buffer reserved last. */
int peer_send(struct peer *peer, size_t len);
/* Waits until all messages are on their way without further calls. */
int peer_flush(struct peer *peer);
/* Waits for a message and lends it; returns its length, or -1. */
ssize_t peer_recv(struct peer *peer, const void **message);
/* Gives the lent message back. */
int peer_release(struct peer *peer);
/* Ends the peer. */
void peer_close(struct peer *peer);
/* Returns the reason why the last call failed. */
const char *peer_error(void);

#endif
