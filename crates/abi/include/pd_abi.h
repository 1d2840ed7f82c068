/* The PipeDevice ABI. Generated from the pd-abi crate; do not edit.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Numbers are little endian. Offsets of words are bytes from the start of their page or line. */
#ifndef PD_ABI_H
#define PD_ABI_H

#include <stdint.h>

/* Version. */
/* Version of everything in this crate. A driver refuses a client of another version. */
#define PD_ABI_VERSION 19ull
/* First word of the status region and of every Frame: "PipeDev1", little endian. */
#define PD_ABI_MAGIC 3564147499544373584ull

/* Limits. */
/* Ordinary page. Regions are whole pages. */
#define PD_ABI_PAGE_BYTES 4096ull
/* Hugepage that payload regions are made of when the machine has some (paper, section IV-A). */
#define PD_ABI_HUGEPAGE_BYTES 2097152ull
/* Cache line: words of different writers never share one. */
#define PD_ABI_LINE_BYTES 64ull
/* Depth of an engine's submission and completion queue (paper, section IV). A full submission queue makes the mover reap before it submits more. */
#define PD_ABI_QUEUE_DEPTH 1024ull
/* Payload of one command on the paper's hardware (section IV-B); engines state their own. */
#define PD_ABI_CHUNK_BYTES_PAPER 4096ull
/* Entries of a request ring. A client that finds it full waits for the driver. */
#define PD_ABI_REQUEST_RING_ENTRIES 1024ull
/* Entries of an event ring. Events that do not fit wait, in order, in the driver; there are at most one per socket and one per unanswered request. */
#define PD_ABI_EVENT_RING_ENTRIES 1024ull
/* Most answers to one request for several sockets. */
#define PD_ABI_ANSWERS_MAX 64ull
/* Channels (a request ring and an event ring) of one client. Threads beyond that share channels. */
#define PD_ABI_CHANNELS_MAX 64ull
/* Sockets of one client: EMFILE beyond. */
#define PD_ABI_SOCKETS_MAX 65536ull
/* Payload regions of one client: ENOMEM beyond. */
#define PD_ABI_REGIONS_MAX 4096ull
/* Default size of a socket's send ring and of its receive ring (paper, section IV-A). */
#define PD_ABI_RING_BYTES_DEFAULT 4194304ull
/* Smallest ring; smaller wishes are rounded up. */
#define PD_ABI_RING_BYTES_MIN 65536ull
/* Largest ring; larger wishes are rounded down, as the BSD calls do. */
#define PD_ABI_RING_BYTES_MAX 1073741824ull
/* Connections that one client may have on the direct path, each of which takes up to three of the 65,530 mappings that a process may have; further ones are offloaded. */
#define PD_ABI_DIRECT_CONNECTIONS_MAX 16384ull
/* Longest span of one send request. Longer sends are split by the client library. */
#define PD_ABI_MESSAGE_BYTES_MAX 1073741824ull
/* Send requests that one socket may have outstanding; the library waits at it. */
#define PD_ABI_SENDS_IN_FLIGHT_MAX 4096ull
/* Files that the driver has open for one client at a time. The client reads others itself, and sends the bytes. */
#define PD_ABI_FILES_MAX 64ull
/* Connections on the kernel whose reasons a client keeps; the oldest makes room. */
#define PD_ABI_KERNEL_CONNECTIONS_MAX 256ull
/* Largest backlog of a listener; larger wishes are rounded down, as the BSD calls do. */
#define PD_ABI_BACKLOG_MAX 4096ull
/* First and last port handed out where a program names none. */
#define PD_ABI_EPHEMERAL_PORT_FIRST 32768ull
/* See EPHEMERAL_PORT_FIRST. */
#define PD_ABI_EPHEMERAL_PORT_LAST 60999ull

/* Places in the control region and the status region. */
/* Distance from one channel to the next. */
#define PD_ABI_LAYOUT_CHANNEL_STRIDE 36864ull
/* First channel. */
#define PD_ABI_LAYOUT_CHANNELS_OFFSET 4096ull
/* First socket line. */
#define PD_ABI_LAYOUT_SOCKETS_OFFSET 2363392ull
/* Distance from one socket line to the next. */
#define PD_ABI_LAYOUT_SOCKET_STRIDE 64ull
/* Size of the control region and of the status region. Pages come into being when they are used. */
#define PD_ABI_LAYOUT_REGION_BYTES 6557696ull

/* How a stream ends: recv_end, send_end. */
/* recv_end, send_end: ended in order. Above every errno. */
#define PD_ABI_LAYOUT_ENDED 65536ull
/* send_end: EPIPE, the peer has closed, and has not received all. */
#define PD_ABI_LAYOUT_LOST 32ull
/* recv_end, send_end of a twin: the rest of the stream goes over the kernel's connection. */
#define PD_ABI_LAYOUT_ELSEWHERE 65537ull
/* send_end: the peer has shut down receiving, and has not closed. What it has not read yet it may still read. */
#define PD_ABI_LAYOUT_SHUT 65538ull

/* How bytes travel: path. */
/* The driver moves the bytes. Also of sockets that are not connected. */
#define PD_ABI_PATH_OFFLOADED 0ull
/* The bytes lie in rings that the two clients share. */
#define PD_ABI_PATH_DIRECT 1ull
/* Added to DIRECT: the peer has made its ring. */
#define PD_ABI_PATH_PEER_READY 2ull
/* Added to DIRECT: the connection is offloaded again. This side writes nothing more into its ring (see Operation::Left), and reads of the peer's ring only what is there, until LAST says where it ends. */
#define PD_ABI_PATH_LEFT 4ull
/* Of a twin that has connected, and is offloaded: the other end has been claimed. */
#define PD_ABI_PATH_CLAIMED 8ull
/* Added to LEFT: the peer writes nothing more into its ring, so that its end is known. */
#define PD_ABI_PATH_LAST 16ull
/* Added to DIRECT: what this side sends stays offloaded, because its peer receives no bytes that the sender can still change (see SocketOption::ReceivesShared). */
#define PD_ABI_PATH_SENDS_OFFLOADED 32ull
/* Added to DIRECT: the policy says that the two sides trust each other. Bytes may be lent where the peer wrote them. */
#define PD_ABI_PATH_TRUSTED 64ull
/* Of a twin that was another client's: the driver has still to bring bytes that a previous client of the socket was brought and has not read. The peer's ring is not read before them. */
#define PD_ABI_PATH_RECV_UNDRAINED 128ull
/* Of a twin that was another client's: the driver has still to deliver what a previous client of the socket has sent. What this side sends goes by the driver until then. */
#define PD_ABI_PATH_SEND_UNDRAINED 256ull
/* Added to LAST: the peer's side went to another client, and the driver has fixed where the ring ends (FrameKind::RingEnds). */
#define PD_ABI_PATH_PEER_TAKEN 512ull
/* This side went to another client while there were rings. Bytes beyond the ends that the driver has fixed (FrameKind::RingEnds) are not sent, and not received. The upper half of the word has no other bit. */
#define PD_ABI_PATH_TAKEN 65536ull

/* Values of requests. */
/* value of Operation::Close: the peer's stream ends with ECONNRESET, after what was sent. */
#define PD_ABI_CLOSE_RESETS 1ull
/* value of Operation::Close: the connection goes on in the kernel in both directions, for all processes that hold it. */
#define PD_ABI_CLOSE_LEFT 2ull
/* value of Operation::StepAside: the kernel would only be faster. Refused with EACCES where a rate or a mirror needs the driver to move the connection's bytes. */
#define PD_ABI_STEP_ASIDE_BY_CHOICE 1ull
/* value of Operation::StepAside: the socket's process looks at both streams, so that a peer that follows sends no mark over the kernel's connection. Without effect if the peer has left before. */
#define PD_ABI_STEP_ASIDE_UNMARKED 2ull
/* value of Operation::StepAside: this process takes the peer's mark off the kernel's connection, so that whichever has the socket later looks for none. Answered with UNMARKED if there is no mark any more, and PEER_LEFT. A peer that has not left sends no mark when it follows: a process that is about to close the kernel's socket asks for that. */
#define PD_ABI_STEP_ASIDE_CLAIM_MARK 4ull
/* In the answer to Operation::StepAside: the peer has left before. */
#define PD_ABI_PEER_LEFT 9223372036854775808ull
/* In the answer to Operation::StepAside: the peer wants no mark. */
#define PD_ABI_PEER_UNMARKED 4611686018427387904ull
/* In the answer to Operation::StepAside: this side has left before, by another process perhaps, and sends no mark again. */
#define PD_ABI_LEFT_BEFORE 2305843009213693952ull
/* In the answer to Operation::StepAside: no mark of the peer's is to be taken off. */
#define PD_ABI_UNMARKED 1152921504606846976ull
/* In the answer to TwinOperation::Take, beside the bytes of the rings: the side has left. */
#define PD_ABI_TAKEN_ASIDE 9223372036854775808ull
/* value of Operation::Left: all of the peer's ring was read. */
#define PD_ABI_LEFT_RECEIVING 1ull
/* value of Operation::Left: nothing more is written into this side's ring. */
#define PD_ABI_LEFT_SENDING 2ull
/* value of Operation::Bind: the socket stands beside one of the kernel's, for a program that knows no other: listeners of one user in one network namespace share a port, taking connections in turns. */
#define PD_ABI_BESIDE_KERNEL 1ull
/* value of Operation::Listen and Operation::Connect: see SocketOption::ReceivesShared. */
#define PD_ABI_RECEIVES_SHARED 2ull
/* value of Operation::Listen: the listener begins as with OTHER_NETWORKS. */
#define PD_ABI_LISTENS_TO_OTHERS 4ull
/* Number of SocketOption::Paused: the listener takes connections of other networks alone, which the kernel cannot bring. */
#define PD_ABI_OTHER_NETWORKS 2ull
/* Bits of the offset in the first number of Operation::Send; the region lies above. */
#define PD_ABI_SPAN_OFFSET_BITS 48ull
/* Bits of the length in the second number of Operation::Send; above lie the sends beyond the first. */
#define PD_ABI_SEND_LEN_BITS 32ull
/* Bits of the slot in a SocketId and a FileId; the generation lies above. */
#define PD_ABI_ID_SLOT_BITS 16ull

/* Sizes of requests about kernel sockets. */
/* Bytes of a TwinRequest in the text of a Frame. */
#define PD_ABI_TWIN_REQUEST_BYTES 64ull

/* Ids of frames. */
/* Frame::id of the control region in Mapped and Ready. */
#define PD_ABI_REGION_CONTROL 4294967295ull

/* Limits of pipes. */
/* Smallest ring of a pipe: one frame of the largest size fits beside another. */
#define PD_ABI_PIPE_RING_BYTES_MIN 32768ull
/* Default size of a pipe's ring, which the second-level cache holds on most processors. */
#define PD_ABI_PIPE_RING_BYTES_DEFAULT 524288ull
/* Largest ring of a pipe. */
#define PD_ABI_PIPE_RING_BYTES_MAX 67108864ull
/* Shortest frame: an Ethernet header. The client that announces a shorter one is cut off. */
#define PD_ABI_FRAME_BYTES_MIN 14ull
/* Longest frame. The client that announces a longer one is cut off. */
#define PD_ABI_FRAME_BYTES_MAX 9216ull
/* Bytes after which a client gives space back at the latest; in a small ring a quarter of the ring. */
#define PD_ABI_PIPE_PIECE_BYTES 32768ull
/* Ports that a verdict can name. */
#define PD_ABI_PIPE_PORTS_MAX 64ull
/* Frames in a row whose verdict names no port; a client that sends more is cut off. */
#define PD_ABI_FOREIGN_VERDICTS_MAX 16ull
/* Offset of the frame table in the status file and in the control file. */
#define PD_ABI_FRAME_TABLE_OFFSET 4096ull
/* Bytes of an entry of a frame table. */
#define PD_ABI_FRAME_ENTRY_BYTES 4ull
/* Bits of link that hold a LinkPath; the number is above them. */
#define PD_ABI_LINK_PATH_BITS 3ull
/* Largest number of an offer, after which 1 follows. */
#define PD_ABI_LINK_NUMBER_MAX 536870911ull

/* Sizes of requests for pipes. */
/* Bytes of a PipeRequest in the text of a Frame. */
#define PD_ABI_PIPE_REQUEST_BYTES 88ull
/* Bytes of the names of a request's ports. */
#define PD_ABI_PIPE_NAMES_BYTES 64ull

/* Verdicts on frames of a pipe. */
/* To the port that the pipe belongs to; of a forwarded frame the one that it came from. Other numbers name the ports that the pipe was opened with. */
#define PD_ABI_VERDICT_BACK 0ull
/* To no port: the frame ends here. */
#define PD_ABI_VERDICT_DROP 65535ull

/* Descriptors of the other end of a link: page_bytes of PipePeer. */
/* The ring of the other end, which sends. */
#define PD_ABI_PEER_HAS_RING 1ull
/* The wake-up eventfd of the pipe itself, which the other end signals, for a program that waits in poll or epoll. Never read or written: each signal is an edge. */
#define PD_ABI_PEER_HAS_OWN_EVENTFD 2ull
/* The wake-up eventfd of the other end, to be signalled in a way that cannot block (IOCB_FLAG_RESFD). */
#define PD_ABI_PEER_HAS_PEER_EVENTFD 4ull

/* Requests. */
/* Move a span of a send region to the peer (paper, section III-E). Numbers: the region above SPAN_OFFSET_BITS of offset; the sends beyond the first above SEND_LEN_BITS of length. The second may grow while the request is the newest of its ring. Unanswered. */
#define PD_ABI_OP_SEND 1ull
/* The client has given back the bytes of the receive ring that the driver waits for (space_wake_at). Unanswered. */
#define PD_ABI_OP_SPACE 2ull
/* A new socket; family says IPv4 or IPv6. Answered with its id and, as a number, the bytes of its send and receive rings. */
#define PD_ABI_OP_SOCKET 3ull
/* Bind to an address; value may be BESIDE_KERNEL. Answered with the address bound. */
#define PD_ABI_OP_BIND 4ull
/* Listen; numbers: backlog; value may be RECEIVES_SHARED, for the sockets that are accepted, and LISTENS_TO_OTHERS. Answered with the local address. */
#define PD_ABI_OP_LISTEN 5ull
/* Connect to an address; value may be RECEIVES_SHARED. Answered with the local address. */
#define PD_ABI_OP_CONNECT 6ull
/* Take one connection from the backlog. Answered with the new socket's id and the peer's address, or EAGAIN. */
#define PD_ABI_OP_ACCEPT 7ull
/* End of the socket; bytes that it has sent are still delivered. value may be CLOSE_RESETS or CLOSE_LEFT. Unanswered. */
#define PD_ABI_OP_CLOSE 8ull
/* Stop sending and/or receiving; numbers: a mask, 1 receive, 2 send. Answered. */
#define PD_ABI_OP_SHUTDOWN 9ull
/* Set a SocketOption to a number. Answered with the value taken, in the address bytes. */
#define PD_ABI_OP_SET_OPTION 10ull
/* Events of the socket go to the channel of this request. Answered. */
#define PD_ABI_OP_ADOPT 11ull
/* The twin may not be claimed any more. Answered: EISCONN if it has been. */
#define PD_ABI_OP_WITHDRAW 12ull
/* Direct path: post the Ready event that the peer waits for. Unanswered. */
#define PD_ABI_OP_NUDGE 13ull
/* Direct path: end the connection, for the peer's words are impossible. Unanswered. */
#define PD_ABI_OP_BROKEN 14ull
/* The socket has left the direct path, as its path word asked for, in one of its directions: value is LEFT_RECEIVING or LEFT_SENDING. Unanswered. */
#define PD_ABI_OP_LEFT 15ull
/* Open a file for SendFile: the one that the client has passed on its file socket, with its serial as the first number (PassedFile). Answered with a FileId as a number; ENOTCONN without a file socket, ESTALE if nothing was passed with that serial, EPROTO if something else was passed. */
#define PD_ABI_OP_OPEN_FILE 16ull
/* Move a piece of a file to the peer: tag is a FileId, the numbers are its first byte and its length (at most MESSAGE_BYTES_MAX). Counted as a send. Unanswered. */
#define PD_ABI_OP_SEND_FILE 17ull
/* Of a twin: the connection goes on in the kernel. The socket sends nothing more: its peer's receiving ends with ELSEWHERE after what was sent, and its peer's sending at once. Answered, as a number, with the position in the stream up to which the driver delivers what the peer has sent before it could know, and PEER_LEFT, PEER_UNMARKED, LEFT_BEFORE and UNMARKED. value is a sum of STEP_ASIDE_BY_CHOICE and STEP_ASIDE_UNMARKED, or STEP_ASIDE_CLAIM_MARK. */
#define PD_ABI_OP_STEP_ASIDE 18ull
/* Numbers: one that the client chooses. The channel's synced tells it when the driver has taken what other clients' threads had put into their request rings before, and has brought as much of it as there is room for. Of a twin whose peer's process has ended, the driver looks whether another one holds the kernel's socket there. Needs no socket. Unanswered. */
#define PD_ABI_OP_SYNC 19ull

/* Socket options. */
/* Bytes of the send ring: the most that may be sent and not yet delivered. */
#define PD_ABI_OPTION_SEND_RING_BYTES 1ull
/* Bytes of the receive ring. Takes effect when the next ring is attached. */
#define PD_ABI_OPTION_RECEIVE_RING_BYTES 2ull
/* A second listener may bind the port once the first is closed. Always so, and accepted for programs that set it. */
#define PD_ABI_OPTION_REUSE_ADDRESS 3ull
/* An IPv6 socket takes no IPv4 connections. */
#define PD_ABI_OPTION_V6_ONLY 4ull
/* A question, not a setting: the answer carries the socket's local address. */
#define PD_ABI_OPTION_LOCAL_ADDRESS 5ull
/* A listener takes no new connections until it is cleared, or with OTHER_NETWORKS no others; those in its backlog stay. */
#define PD_ABI_OPTION_PAUSED 6ull
/* The socket receives bytes that their sender can still change, on the direct path: the library copies them before the program looks at them, or the program has asked for them as they are. Cannot be taken back. */
#define PD_ABI_OPTION_RECEIVES_SHARED 7ull
/* A question, not a setting, about an accepted socket: the answer carries the address that the connecting side asked for, where that is not the one it reached. ENOENT where it is. */
#define PD_ABI_OPTION_ORIGINAL_ADDRESS 8ull

/* Events. */
/* A request was carried out, or refused. */
#define PD_ABI_EVENT_ANSWER 1ull
/* A subscribed socket may have become readable, writable or closed. Reactive: no second one before the client has acknowledged the first (event_ack). */
#define PD_ABI_EVENT_READY 2ull
/* As Answer, and another answer to the same request follows. */
#define PD_ABI_EVENT_MORE 3ull

/* Frames. */
/* Client: attaches. */
#define PD_ABI_FRAME_HELLO 1ull
/* Driver: the client is attached, with the number id. */
#define PD_ABI_FRAME_WELCOME 2ull
/* Client: region id is mapped, and can be sealed. The control region is sealed already. */
#define PD_ABI_FRAME_MAPPED 3ull
/* Driver: region id is sealed and in use. */
#define PD_ABI_FRAME_READY 4ull
/* Client: asks for a channel. Driver: passes it. */
#define PD_ABI_FRAME_CHANNEL 5ull
/* Client: asks for a send region of at least bytes. Driver: passes it. */
#define PD_ABI_FRAME_SEND_REGION 6ull
/* Driver: passes a receive region. */
#define PD_ABI_FRAME_RECEIVE_REGION 7ull
/* Client: asks for a socket that becomes readable with events on channel id, its wake pipe. Driver: passes it. */
#define PD_ABI_FRAME_WAKE_PIPE 8ull
/* Driver: refuses a request, with the reason. */
#define PD_ABI_FRAME_ERROR 9ull
/* Driver: cuts the client off, with the reason. */
#define PD_ABI_FRAME_GOODBYE 10ull
/* Client: a TwinRequest, in the text; id is the channel for the answer. */
#define PD_ABI_FRAME_TWIN 11ull
/* Client: asks for the ring that it is to write for socket id. Driver: passes it, bytes behind an index page of page_bytes. */
#define PD_ABI_FRAME_DIRECT_RING 12ull
/* Client: the direct ring of socket id is mapped and sealed. */
#define PD_ABI_FRAME_DIRECT_MAPPED 13ull
/* Client: asks for the ring that the peer of socket id writes. Driver: passes it. */
#define PD_ABI_FRAME_PEER_RING 14ull
/* Client: asks for an eventfd to sleep on, which the peer of socket id may write, for its epoll instance bytes. Driver: passes it, with the number bytes: one for all connections of that instance with that peer. */
#define PD_ABI_FRAME_DOORBELL 15ull
/* Client: asks for the doorbell that the peer of socket id sleeps on. Driver: passes it, with the number bytes. */
#define PD_ABI_FRAME_PEER_DOORBELL 16ull
/* Client: asks for the socket by which it can pass files (PassedFile). Driver: passes it, once; then EEXIST. */
#define PD_ABI_FRAME_FILE_SOCKET 17ull
/* Client: asks for a pipe with a ring of bytes; a pipe::PipeRequest is in the text. Driver: passes it, with the number id. */
#define PD_ABI_FRAME_PIPE 18ull
/* Client: the memory of pipe id is mapped and can be sealed. Driver: Ready, once the agent has started the pipe; Error closes it. */
#define PD_ABI_FRAME_PIPE_MAPPED 19ull
/* Client: asks for a pipe of the kernel that becomes readable when pipe id is to be looked at. Driver: passes it. */
#define PD_ABI_FRAME_PIPE_WAKE_FD 20ull
/* Client: needs pipe id no more. */
#define PD_ABI_FRAME_PIPE_CLOSE 21ull
/* Client: asks where the rings of socket id end since one side of its connection went to another client. Driver: says so. bytes: what the socket has sent by its own ring. page_bytes: what it receives of its peer's. u64::MAX: no end is fixed. */
#define PD_ABI_FRAME_RING_ENDS 22ull
/* Client: asks for the memory of the other end of pipe id, for the direct path of a link. Driver: passes it, for reading; bytes is the size of the sender's ring. */
#define PD_ABI_FRAME_PIPE_PEER 23ull

/* Requests about kernel sockets. */
/* Connections to this listening socket may have twins. Each process that holds the socket may ask for it. */
#define PD_ABI_TWIN_LISTEN 1ull
/* A twin, which can send at once, for this socket, which is bound and about to be connected. ECONNREFUSED if no process said Listen there. EREMOTE if the peer's address is a map's: the kernel has no way to it, and Operation::Connect of a socket without one of the kernel's reaches it. */
#define PD_ABI_TWIN_CONNECT 2ull
/* The twin of this accepted socket. ENOENT if the peer has made none. With the bytes of its rings comes, as a second number, the connecting end if it is the client's own. */
#define PD_ABI_TWIN_CLAIM 3ull
/* The twin of this connected socket, which another process uses or used: it becomes the client's, with the bytes that were not read. ENOENT if there is none, EREMCHG if the connection has gone on in the kernel. With the bytes of its rings comes TAKEN_ASIDE if it is about to. */
#define PD_ABI_TWIN_TAKE 4ull
/* The client claims none of the listening socket's connections any more. */
#define PD_ABI_TWIN_UNLISTEN 5ull

/* Directions of pipes. */
/* To the client. */
#define PD_ABI_PIPE_RECEIVE 1ull
/* From the client. */
#define PD_ABI_PIPE_SEND 2ull
/* To the client and on from there, in one ring. */
#define PD_ABI_PIPE_FORWARD 3ull

/* Units of pipes. */
/* Frames, with a frame table. */
#define PD_ABI_PIPE_UNIT_FRAMES 1ull
/* Bytes without marks between them. */
#define PD_ABI_PIPE_UNIT_BYTES 2ull

/* Paths of a pipe's frames on a link. */
/* The agent passes frames on. */
#define PD_ABI_LINK_PATH_AGENT 0ull
/* The agent passes frames on until both ends have mapped the other's memory. */
#define PD_ABI_LINK_PATH_OFFERED 1ull
/* The receiver reads the sender's ring. */
#define PD_ABI_LINK_PATH_DIRECT 2ull
/* The receiver reads on to a frame of its choice, and says which is the next (link_left). */
#define PD_ABI_LINK_PATH_RECALLED 3ull
/* The sender has gone: as Recalled, at the end of what it has sent. */
#define PD_ABI_LINK_PATH_LAST 4ull

/* Families of addresses. */
/* A file, of a socket that has one for an address; device and inode are the bytes. */
#define PD_ABI_FAMILY_FILE 1ull
/* IPv4. */
#define PD_ABI_FAMILY_V4 4ull
/* IPv6. */
#define PD_ABI_FAMILY_V6 6ull

/* Why a connection is the kernel's. */
/* the peer listens without the library, or not at all */
#define PD_ABI_REASON_PEER_WITHOUT 1ull
/* the address is of another host, or of a namespace that the driver does not serve */
#define PD_ABI_REASON_PEER_UNKNOWN 2ull
/* the peer did not take the connection up in time */
#define PD_ABI_REASON_PEER_SLOW 3ull
/* the peer connected without the fabric */
#define PD_ABI_REASON_PEER_PLAIN 4ull
/* the peer has left */
#define PD_ABI_REASON_PEER_LEFT 5ull
/* connections there are short-lived */
#define PD_ABI_REASON_SHORT_LIVED 6ull
/* the policy denies it */
#define PD_ABI_REASON_POLICY 7ull
/* no descriptor is left, or no connection that the driver or the policy allows */
#define PD_ABI_REASON_LIMIT 8ull
/* no memory is left, the process's or the driver's, or no connection of the driver's */
#define PD_ABI_REASON_NO_MEMORY 9ull
/* no port was free for a connection on the fabric */
#define PD_ABI_REASON_NO_PORT 10ull
/* the process is not attached to a driver */
#define PD_ABI_REASON_NO_DRIVER 11ull
/* the driver refused it */
#define PD_ABI_REASON_REFUSED 12ull
/* such addresses are the kernel's */
#define PD_ABI_REASON_ADDRESS 13ull
/* the program waits where the library does not see it */
#define PD_ABI_REASON_UNSEEN_WAIT 14ull
/* urgent bytes */
#define PD_ABI_REASON_URGENT 15ull
/* an option of the kernel's */
#define PD_ABI_REASON_OPTION 16ull
/* signals for each event */
#define PD_ABI_REASON_SIGNALS 17ull
/* zero-copy sends */
#define PD_ABI_REASON_ZERO_COPY 18ull
/* a message with descriptors */
#define PD_ABI_REASON_CONTROL_DATA 19ull
/* small messages, for which a thread sleeps each time */
#define PD_ABI_REASON_SMALL_TALK 20ull
/* the process forked, closed or ended before the peer took the connection up */
#define PD_ABI_REASON_SETTLED 21ull
/* the program has forbidden itself system calls */
#define PD_ABI_REASON_SANDBOX 22ull
/* the driver did not let the process in ([attach] of its policy) */
#define PD_ABI_REASON_NOT_LET_IN 23ull
/* several processes use it in turn */
#define PD_ABI_REASON_SHARED 24ull

/* Commands of an engine. */
/* Copy data_len bytes from src_addr to dst_addr. */
#define PD_ABI_COMMAND_GENERAL_SEND 1ull
/* The copy is done; see the status for how it went. */
#define PD_ABI_COMMAND_GENERAL_COMPLETED 2ull

/* How a command ended. */
/* All bytes are at the destination. */
#define PD_ABI_STATUS_OK 0ull
/* The engine cannot reach one of the addresses. */
#define PD_ABI_STATUS_BAD_ADDRESS 1ull
/* data_len is zero or above the engine's chunk size. */
#define PD_ABI_STATUS_BAD_LENGTH 2ull
/* request_type is not one the engine knows. */
#define PD_ABI_STATUS_BAD_TYPE 3ull
/* The engine failed; any part of the destination may have been written. */
#define PD_ABI_STATUS_FAILED 4ull

/* Tables that a command's entry counts in. */
/* Send buffer table. */
#define PD_ABI_TABLE_SBT 0ull
/* Receive buffer table. */
#define PD_ABI_TABLE_RBT 1ull

/* Version of the counter region. */
/* Version of this module's layout. Grows without VERSION, which clients know. */
#define PD_ABI_COUNTERS_VERSION 7ull
/* First word of the region: "PipeCnt1", little endian. */
#define PD_ABI_COUNTERS_MAGIC 3563594440900634960ull

/* Places in the counter region. */
/* Place of Header. */
#define PD_ABI_COUNTERS_HEADER 0ull
/* Place of Gauges. */
#define PD_ABI_COUNTERS_GAUGES 64ull
/* From one agent's line to the next. */
#define PD_ABI_COUNTERS_AGENT_STRIDE 512ull
/* From one client's or flow's line to the next. */
#define PD_ABI_COUNTERS_LINE_STRIDE 64ull

/* Limits of the counter region. */
/* Most movers of a driver. */
#define PD_ABI_COUNTERS_MOVERS_MAX 64ull
/* Most clients of a driver: their numbers have 16 bits. */
#define PD_ABI_COUNTERS_CLIENTS_MAX 65536ull
/* Most connections of a driver. */
#define PD_ABI_COUNTERS_CONNECTIONS_MAX 16777216ull

/* Header of the status region, written by: driver. 4096 bytes. */
/* u64: MAGIC. */
#define PD_ABI_HEADER_MAGIC 0ull
/* u32: VERSION. */
#define PD_ABI_HEADER_VERSION 8ull
/* u32: The client's number. */
#define PD_ABI_HEADER_CLIENT 12ull
/* u32: Twins that the client may find when it accepts: made towards its listeners, and not yet claimed or withdrawn. Counted before the connecting client learns of its twin, so that 0 says that no connection which the kernel has accepted has one. */
#define PD_ABI_HEADER_CLAIMABLE 16ull
/* u32: Not 0: for a while more threads have wanted to run on this machine than it has cores. A wait then sleeps rather than spins. */
#define PD_ABI_HEADER_CORES_SCARCE 20ull
/* [u32; FILES_MAX]: The FileId of each slot with an open file that may be sent; 0: none. See control_header::FILE_USES. */
#define PD_ABI_HEADER_FILES 64ull

/* Header of the control region, written by: client. 4096 bytes. */
/* [u32; FILES_MAX]: Sends of the file of each slot, since it was opened. The client counts one, fences, looks whether the slot is still the file's, and only then sends; the driver closes a file by clearing the slot, fencing, and looking whether it has taken as many sends as were counted: if not, it stays open. */
#define PD_ABI_CONTROL_HEADER_FILE_USES 64ull
/* [u32; KERNEL_REASONS]: Connections of the process that are or were the kernel's, for each KernelReason. They only grow. */
#define PD_ABI_CONTROL_HEADER_KERNEL_COUNTS 384ull
/* [u64; KERNEL_CONNECTIONS_MAX]: The inode of such a connection's socket in the lower half, its KernelReason in the upper; 0: none. */
#define PD_ABI_CONTROL_HEADER_KERNEL_CONNECTIONS 512ull

/* A channel in the control region, written by: client. 36864 bytes. */
/* u64: Requests written. */
#define PD_ABI_CHANNEL_CONTROL_REQUEST_PRODUCER 0ull
/* u64: Events read. */
#define PD_ABI_CHANNEL_CONTROL_EVENT_CONSUMER 64ull
/* u64: Ring event_doorbell when event_producer reaches this. */
#define PD_ABI_CHANNEL_CONTROL_EVENT_WAKE_AT 72ull
/* u32: Not 0: also write the wake pipe when event_wake_at is reached. */
#define PD_ABI_CHANNEL_CONTROL_PIPE_WANTED 80ull
/* u64: Ring sync_doorbell when synced reaches this. */
#define PD_ABI_CHANNEL_CONTROL_SYNC_WAKE_AT 88ull
/* [Request; REQUEST_RING_ENTRIES]: The entries. */
#define PD_ABI_CHANNEL_CONTROL_REQUESTS 256ull

/* A channel in the status region, written by: driver. 36864 bytes. */
/* u64: Requests taken. */
#define PD_ABI_CHANNEL_STATUS_REQUEST_CONSUMER 0ull
/* u32: 0: the driver is looking; otherwise the number of its present sleep: write the doorbell eventfd once for each. */
#define PD_ABI_CHANNEL_STATUS_NEED_WAKEUP 64ull
/* u64: Events written. */
#define PD_ABI_CHANNEL_STATUS_EVENT_PRODUCER 128ull
/* u32: Futex: incremented with each wake-up. */
#define PD_ABI_CHANNEL_STATUS_EVENT_DOORBELL 136ull
/* u32: Not 0: events wait for room; write the doorbell after reading some. */
#define PD_ABI_CHANNEL_STATUS_EVENTS_WAITING 140ull
/* u64: The largest number of a Operation::Sync that was carried out. */
#define PD_ABI_CHANNEL_STATUS_SYNCED 144ull
/* u32: Futex: incremented with each wake-up. */
#define PD_ABI_CHANNEL_STATUS_SYNC_DOORBELL 152ull
/* [Event; EVENT_RING_ENTRIES]: The entries. */
#define PD_ABI_CHANNEL_STATUS_EVENTS 256ull

/* A socket's line in the control region, written by: client. 64 bytes. */
/* u64: Bytes given back by pd_recv_done; of a listener: connections accepted. */
#define PD_ABI_SOCKET_CONTROL_RECV_CONSUMER 0ull
/* u64: Ring recv_doorbell when recv_producer reaches this, and when the stream ends. */
#define PD_ABI_SOCKET_CONTROL_RECV_WAKE_AT 8ull
/* u64: Ring send_doorbell when send_consumer reaches this, and when the socket fails. */
#define PD_ABI_SOCKET_CONTROL_SEND_WAKE_AT 16ull
/* u32: Not 0: post a Ready event with every such ring, and with everything received. */
#define PD_ABI_SOCKET_CONTROL_SUBSCRIBED 24ull
/* u32: Number of the last Ready event acknowledged. */
#define PD_ABI_SOCKET_CONTROL_EVENT_ACK 28ull
/* u32: The socket's generation, written last when a socket is taken into use. */
#define PD_ABI_SOCKET_CONTROL_GENERATION 32ull

/* A socket's line in the status region, written by: driver. 64 bytes. */
/* u64: Bytes delivered to the receive ring; of a listener: connections that ever entered the backlog. Byte n of the stream lies at offset n modulo the ring's size. */
#define PD_ABI_SOCKET_STATUS_RECV_PRODUCER 0ull
/* u64: Send requests whose span may be reused. */
#define PD_ABI_SOCKET_STATUS_SEND_CONSUMER 8ull
/* u64: Write Operation::Space when recv_consumer reaches this; 0: no need. Of a socket that another client has taken: bytes that it has received; see moved. */
#define PD_ABI_SOCKET_STATUS_SPACE_WAKE_AT 16ull
/* u32: Futex: incremented to wake a receiver. */
#define PD_ABI_SOCKET_STATUS_RECV_DOORBELL 24ull
/* u32: Futex: incremented to wake a sender. */
#define PD_ABI_SOCKET_STATUS_SEND_DOORBELL 28ull
/* u32: End of receiving: 0 if it goes on, ENDED if the stream ended in order, otherwise an errno. ESTALE in the lower 16 bits: another client has taken the socket; see moved. */
#define PD_ABI_SOCKET_STATUS_RECV_END 32ull
/* u32: End of sending, likewise. ESTALE in the lower 16 bits: another client has taken the socket; see moved. */
#define PD_ABI_SOCKET_STATUS_SEND_END 36ull
/* u32: Number of the last Ready event posted. */
#define PD_ABI_SOCKET_STATUS_EVENT_NUMBER 40ull
/* u32: Region that the receive ring lies in. Valid while recv_producer > recv_consumer. */
#define PD_ABI_SOCKET_STATUS_RING_REGION 44ull
/* u32: First page of the receive ring in that region. */
#define PD_ABI_SOCKET_STATUS_RING_PAGE 48ull
/* u32: Pages of the receive ring; a power of two. */
#define PD_ABI_SOCKET_STATUS_RING_PAGES 52ull
/* u32: The socket's generation; 0: no socket. */
#define PD_ABI_SOCKET_STATUS_GENERATION 56ull
/* u32: Path of the connection's bytes: a path word. Written before the socket is connected, and once more when the peer's direct ring is there. */
#define PD_ABI_SOCKET_STATUS_PATH 60ull

/* Index page of a direct ring, written by: its owner, a client. 4096 bytes. */
/* u64: Bytes that the owner has written. Byte n lies at offset n modulo the ring's size. */
#define PD_ABI_DIRECT_PRODUCER 0ull
/* u64: Sends that these bytes were. */
#define PD_ABI_DIRECT_MESSAGES 8ull
/* u64: Bytes that the owner is about to publish in producer. Needed where another client may take the socket: the owner stores the word, makes a fence unless it has registered for membarrier, and looks for path::TAKEN before it publishes. */
#define PD_ABI_DIRECT_SENT 16ull
/* u64: Bytes of the peer's ring that the owner has given back. */
#define PD_ABI_DIRECT_CONSUMER 128ull
/* u64: Bytes of the peer's ring that the owner is about to give back, likewise. */
#define PD_ABI_DIRECT_RECEIVED 136ull
/* u64: The owner receives: ring recv_doorbell when producer reaches this. */
#define PD_ABI_DIRECT_RECV_WAKE_AT 256ull
/* u64: The owner sends: ring send_doorbell when consumer reaches this. */
#define PD_ABI_DIRECT_SEND_WAKE_AT 264ull
/* u64: The owner receives: have the driver post a Ready event (Operation::Nudge) when producer reaches this. */
#define PD_ABI_DIRECT_RECV_EVENT_AT 272ull
/* u64: The owner sends: likewise, when consumer reaches this. */
#define PD_ABI_DIRECT_SEND_EVENT_AT 280ull
/* u32: Not 0: the fence is asymmetric. The peer makes none between producer and its look at the two words for receiving; the owner makes it on all cores (membarrier) before each sleep. */
#define PD_ABI_DIRECT_RECV_ASYMMETRIC 288ull
/* u32: Not 0: the fence between consumer and the peer's look at the two words for sending is asymmetric. */
#define PD_ABI_DIRECT_SEND_ASYMMETRIC 292ull
/* u32: Not 0: the owner has registered for membarrier. */
#define PD_ABI_DIRECT_BARRIERS 296ull
/* u64: Not 0: the owner sleeps on the doorbell of this number. A peer that has it (FrameKind::PeerDoorbell) rings it instead of a nudge. */
#define PD_ABI_DIRECT_EPOLL_DOORBELL 304ull
/* u32: Futex: incremented to wake the peer's receiver. */
#define PD_ABI_DIRECT_RECV_DOORBELL 384ull
/* u32: Futex: incremented to wake the peer's sender. */
#define PD_ABI_DIRECT_SEND_DOORBELL 388ull

/* First page of a pipe's status file, written by: agent. 4096 bytes. */
/* u64: The notification: bytes that the client may read. It changes at most once until the client answers by recv_consumer, recv_wanted or, in a forwarding pipe, send_producer. */
#define PD_ABI_PIPE_STATUS_RECV_PRODUCER 0ull
/* u64: Bytes that the agent has taken; in a sending pipe their place in the ring is free. */
#define PD_ABI_PIPE_STATUS_SEND_CONSUMER 128ull
/* u32: Futex: incremented with each wake-up of a receiver. */
#define PD_ABI_PIPE_STATUS_RECV_DOORBELL 256ull
/* u32: Futex: incremented with each wake-up of a sender. */
#define PD_ABI_PIPE_STATUS_SEND_DOORBELL 260ull
/* u32: 0: the agent is looking; otherwise the number of its present sleep: write the doorbell eventfd once for each. */
#define PD_ABI_PIPE_STATUS_NEED_WAKEUP 384ull
/* u32: Not 0: the pipe has ended, with this errno. */
#define PD_ABI_PIPE_STATUS_END 388ull
/* u32: Path of the pipe's frames on a link, and the number of the offer: link. */
#define PD_ABI_PIPE_STATUS_LINK 392ull
/* u64: On the direct path: position in the sender's ring of the first frame or byte that the receiver reads there. */
#define PD_ABI_PIPE_STATUS_LINK_FROM 400ull

/* First page of a pipe's control file, written by: client. 4096 bytes. */
/* u64: Bytes that the client has given back. Not of forwarding pipes, where send_producer says so. */
#define PD_ABI_PIPE_CONTROL_RECV_CONSUMER 0ull
/* u32: A count of requests for a notification of what is there (Ensō's notification prefetch). */
#define PD_ABI_PIPE_CONTROL_RECV_WANTED 8ull
/* u64: Bytes that the agent may take. */
#define PD_ABI_PIPE_CONTROL_SEND_PRODUCER 128ull
/* u64: Ring recv_doorbell when recv_producer reaches this. */
#define PD_ABI_PIPE_CONTROL_RECV_WAKE_AT 256ull
/* u64: Ring send_doorbell when send_consumer reaches this; on the direct path the receiver's peer_doorbell, when its link_consumer does. */
#define PD_ABI_PIPE_CONTROL_SEND_WAKE_AT 264ull
/* u64: Receiver on the direct path: ring the sender's peer_doorbell when its send_producer reaches this. */
#define PD_ABI_PIPE_CONTROL_LINK_WAKE_AT 272ull
/* u64: Receiver on the direct path: bytes of the sender's ring that it has given back; u64::MAX before it reads there. Counts on after link_left, up to link_left_at, while frames are lent. */
#define PD_ABI_PIPE_CONTROL_LINK_CONSUMER 384ull
/* u32: Futex: incremented with each wake-up of the peer on the direct path. */
#define PD_ABI_PIPE_CONTROL_PEER_DOORBELL 512ull
/* u32: Number of the offer whose memory is mapped. */
#define PD_ABI_PIPE_CONTROL_LINK_MAPPED 640ull
/* u32: Receiver: number of the direct path that it has left, at link_left_at. */
#define PD_ABI_PIPE_CONTROL_LINK_LEFT 644ull
/* u64: Receiver: position in the sender's ring of the first frame or byte that it has not read. */
#define PD_ABI_PIPE_CONTROL_LINK_LEFT_AT 648ull
/* u64: Receiver: frames, or pieces of bytes, that it has received on the direct path. */
#define PD_ABI_PIPE_CONTROL_LINK_FRAMES 656ull
/* u64: Receiver: bytes of these. */
#define PD_ABI_PIPE_CONTROL_LINK_BYTES 664ull
/* u64: Receiver: frames on the direct path that their sender dropped by its verdict. */
#define PD_ABI_PIPE_CONTROL_LINK_DROPPED 672ull
/* u64: Receiver: frames on the direct path whose verdict names no port of the sender. */
#define PD_ABI_PIPE_CONTROL_LINK_FOREIGN 680ull

/* A request for a pipe, in a frame's text, written by: client. 88 bytes. */
/* u8: A PipeDirection. */
#define PD_ABI_PIPE_REQUEST_DIRECTION 0ull
/* u8: A PipeUnit. */
#define PD_ABI_PIPE_REQUEST_UNIT 1ull
/* u8: Protocol of IPv4. */
#define PD_ABI_PIPE_REQUEST_PROTOCOL 2ull
/* u8: Bits of the source address that count. */
#define PD_ABI_PIPE_REQUEST_SOURCE_PREFIX 3ull
/* u8: Bits of the destination address that count. */
#define PD_ABI_PIPE_REQUEST_DESTINATION_PREFIX 4ull
/* u8: 1: pipes of other clients of the tenant with the same flow have a share of its frames, if their requests say so, too. */
#define PD_ABI_PIPE_REQUEST_SHARES 5ull
/* [u8; 4]: Source address of IPv4. */
#define PD_ABI_PIPE_REQUEST_SOURCE 8ull
/* [u8; 4]: Destination address of IPv4. */
#define PD_ABI_PIPE_REQUEST_DESTINATION 12ull
/* u16: Source port of UDP or TCP. */
#define PD_ABI_PIPE_REQUEST_SOURCE_PORT 16ull
/* u16: Destination port of UDP or TCP. */
#define PD_ABI_PIPE_REQUEST_DESTINATION_PORT 18ull
/* [u8; PIPE_NAMES_BYTES]: Names of ports with commas between them, padded with zeros: the pipe's own, then those that its verdicts may name, the first as 1. */
#define PD_ABI_PIPE_REQUEST_NAMES 24ull

/* A request about a kernel socket, in a frame's text, written by: client. 64 bytes. */
/* u32: A TwinOperation. */
#define PD_ABI_TWIN_REQUEST_OPERATION 0ull
/* u32: Chosen by the client; the answer on the channel carries it. */
#define PD_ABI_TWIN_REQUEST_TAG 4ull
/* u32: The client's descriptor. */
#define PD_ABI_TWIN_REQUEST_DESCRIPTOR 8ull
/* u64: The value of its SO_COOKIE. */
#define PD_ABI_TWIN_REQUEST_COOKIE 16ull
/* [u8; 20]: Its own address. */
#define PD_ABI_TWIN_REQUEST_LOCAL 24ull
/* [u8; 20]: The peer's address. */
#define PD_ABI_TWIN_REQUEST_PEER 44ull

/* Entry of a request ring, written by: client. */
#define PD_ABI_REQUEST_BYTES 32ull
struct pd_abi_request {
    /* An Operation. */
    uint8_t operation;
    /* Of an address: 0, 4 or 6 (see Address). */
    uint8_t family;
    /* Of an address, host order. */
    uint16_t port;
    /* A SocketId, of the client that asks. */
    uint32_t socket;
    /* Chosen by the client; the answer carries it. */
    uint32_t tag;
    /* Small argument of the operation: a SocketOption; of Socket and Accept, how many sockets are wanted, at most ANSWERS_MAX (0 means one). */
    uint32_t value;
    /* An address's bytes, or two little-endian numbers. */
    uint8_t payload[16];
};
_Static_assert(sizeof(struct pd_abi_request) == 32, "request has 32 bytes");

/* Entry of an event ring, written by: driver. */
#define PD_ABI_EVENT_BYTES 32ull
struct pd_abi_event {
    /* An EventKind. */
    uint8_t kind;
    /* Of the address: 0, 4 or 6. */
    uint8_t family;
    /* Of the address, host order. */
    uint16_t port;
    /* A SocketId. */
    uint32_t socket;
    /* Answer and More: the request's tag. Ready: the event's number on this socket, for event_ack. */
    uint32_t tag;
    /* Answer: 0, or an errno. */
    uint32_t error;
    /* Of the address, or two numbers, little endian. */
    uint8_t payload[16];
};
_Static_assert(sizeof(struct pd_abi_event) == 32, "event has 32 bytes");

/* Message on the attach socket, written by: both. */
#define PD_ABI_FRAME_BYTES 128ull
struct pd_abi_frame {
    /* MAGIC. */
    uint64_t magic;
    /* VERSION. */
    uint32_t version;
    /* A FrameKind. */
    uint32_t kind;
    /* Region or channel. */
    uint32_t id;
    /* An errno, or 0. */
    uint32_t error;
    /* Size of the region, or the size wanted. */
    uint64_t bytes;
    /* Page size of the region's memory. */
    uint64_t page_bytes;
    /* Reason, in UTF-8, padded with zeros. */
    uint8_t text[88];
};
_Static_assert(sizeof(struct pd_abi_frame) == 128, "frame has 128 bytes");

/* Datagram on the file socket, written by: client. */
#define PD_ABI_PASSED_FILE_BYTES 16ull
struct pd_abi_passed_file {
    /* MAGIC. */
    uint64_t magic;
    /* Chosen by the client, and greater than that of the datagram before. */
    uint64_t serial;
};
_Static_assert(sizeof(struct pd_abi_passed_file) == 16, "passed_file has 16 bytes");

/* Command and completion of an engine, written by: driver, engine. */
#define PD_ABI_COMMAND_BYTES 32ull
struct pd_abi_command {
    /* A CommandType. */
    uint8_t request_type;
    /* A CommandStatus, set by the engine on completion (out of the paper's reserved bits). */
    uint8_t status;
    /* Local container id: the client that sent. */
    uint16_t cid;
    /* Bytes to move; 1 to the engine's chunk size. */
    uint32_t data_len;
    /* Source address, in the engine's view of memory. */
    uint64_t src_addr;
    /* Destination address, in the engine's view of memory. */
    uint64_t dst_addr;
    /* The driver's number of the flow (one direction of a connection). */
    uint32_t conn_id;
    /* A TableId. */
    uint8_t table_id;
    /* Zero. In a completion queue that hardware writes: Command::PHASE. */
    uint8_t reserved;
    /* Entry of that table, modulo 65,536. */
    uint16_t entry_seq;
};
_Static_assert(sizeof(struct pd_abi_command) == 32, "command has 32 bytes");

/* Header of the counter region, written by: driver. */
#define PD_ABI_COUNTER_HEADER_BYTES 64ull
struct pd_abi_counter_header {
    /* MAGIC. */
    uint64_t magic;
    /* VERSION. */
    uint32_t version;
    /* Movers. */
    uint32_t movers;
    /* Clients that each mover has lines for. */
    uint32_t clients;
    /* Connections that there are lines for, two each. */
    uint32_t connections;
    /* When the driver started, in nanoseconds of CLOCK_REALTIME. */
    uint64_t started_ns;
    /* Bytes that the regions of all clients may have. */
    uint64_t memory_budget_bytes;
    /* Zero. */
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct pd_abi_counter_header) == 64, "counter_header has 64 bytes");

/* Gauges, written by: conductor. */
#define PD_ABI_GAUGES_BYTES 24ull
struct pd_abi_gauges {
    /* Bytes of all clients' regions. */
    uint64_t memory_used_bytes;
    /* Flows that wait for memory for their receive ring. */
    uint64_t rings_waiting;
    /* Movers that have a thread. */
    uint64_t movers_working;
};
_Static_assert(sizeof(struct pd_abi_gauges) == 24, "gauges has 24 bytes");

/* Counters of an agent, written by: that agent. */
#define PD_ABI_AGENT_COUNTERS_BYTES 264ull
struct pd_abi_agent_counters {
    /* Clients that attached. */
    uint64_t clients_attached;
    /* Clients that left, died or were cut off after they had attached. */
    uint64_t clients_left;
    /* Clients refused or cut off. */
    uint64_t clients_cut_off;
    /* Times that nobody was accepted for a while, because no descriptors were left. */
    uint64_t accepts_paused;
    /* Connections made. */
    uint64_t connections_made;
    /* Connections that are over in both directions. */
    uint64_t connections_closed;
    /* Connections that the policy denied. */
    uint64_t connections_denied;
    /* Connections beyond what their tenant may have. */
    uint64_t connections_over_quota;
    /* Connections that a new policy ended. */
    uint64_t connections_cut;
    /* Requests answered with an errno. */
    uint64_t requests_refused;
    /* Sends on sockets that were not connected any more. */
    uint64_t sends_dropped;
    /* Bytes delivered. */
    uint64_t bytes_delivered;
    /* Sends completed. */
    uint64_t messages_completed;
    /* Times that a receive ring was full with more to deliver. */
    uint64_t rings_full;
    /* Times that a flow had to wait for memory for its ring. */
    uint64_t rings_denied;
    /* Sleeping clients woken: receivers of bytes, and senders that waited for room. */
    uint64_t wake_ups;
    /* Times that a mover slept. */
    uint64_t mover_sleeps;
    /* Nanoseconds that movers had nothing to do: looked for work, waited for an engine, or slept. */
    uint64_t mover_idle_ns;
    /* Channels that went from one mover to another. */
    uint64_t channels_moved;
    /* Times that a channel was to go to another mover, and stayed because copies of it did not end. */
    uint64_t moves_put_off;
    /* Commands that an engine failed and the cpu engine did again. */
    uint64_t commands_redone;
    /* Engines no longer used because they kept failing. */
    uint64_t engines_quarantined;
    /* Connections made on the direct path. */
    uint64_t connections_direct;
    /* Connections on the direct path that a client ended because its peer's words were impossible. */
    uint64_t connections_broken;
    /* Connections that left the direct path because policy or tenants changed. */
    uint64_t connections_recalled;
    /* Bytes that clients say they have sent on the direct path. */
    uint64_t bytes_reported;
    /* Sends that they say these were. */
    uint64_t messages_reported;
    /* Bytes of files that the driver read for clients. */
    uint64_t file_bytes;
    /* Reads of files that had to wait for a disk. */
    uint64_t files_cold;
    /* Connections that were ended because a file was shorter than what was sent of it, or could not be read. */
    uint64_t files_failed;
    /* Times that a tenant was refused clients, descriptors or memory beyond what it may hold. */
    uint64_t caps_reached;
    /* Times that the memory of an idle receive region was taken back, because memory was short. */
    uint64_t regions_emptied;
    /* Claims of clients to listen that the kernel did not confirm. */
    uint64_t listeners_refused;
};
_Static_assert(sizeof(struct pd_abi_agent_counters) == 264, "agent_counters has 264 bytes");

/* Counters of a client, for each mover, written by: that mover. */
#define PD_ABI_CLIENT_COUNTERS_BYTES 56ull
struct pd_abi_client_counters {
    /* Serial of the client whose line this is. 0: nobody's. */
    uint64_t serial;
    /* Bytes delivered that it had sent. */
    uint64_t bytes_sent;
    /* Its sends completed. */
    uint64_t messages_sent;
    /* Bytes delivered to it. */
    uint64_t bytes_received;
    /* Sends to it completed. */
    uint64_t messages_received;
    /* Times that one of its receive rings was full with more to deliver. */
    uint64_t rings_full;
    /* Times that it was woken. */
    uint64_t wake_ups;
};
_Static_assert(sizeof(struct pd_abi_client_counters) == 56, "client_counters has 56 bytes");

/* Counters of a flow, written by: its mover. */
#define PD_ABI_FLOW_COUNTERS_BYTES 40ull
struct pd_abi_flow_counters {
    /* Serial of the connection whose line this is. 0: nobody's. */
    uint64_t serial;
    /* Bytes delivered. */
    uint64_t bytes;
    /* Sends completed. */
    uint64_t messages;
    /* Times that the receive ring was full with more to deliver. */
    uint64_t rings_full;
    /* Times that sender or receiver were woken. */
    uint64_t wake_ups;
};
_Static_assert(sizeof(struct pd_abi_flow_counters) == 40, "flow_counters has 40 bytes");

#endif
