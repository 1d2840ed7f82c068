//! `libpd_preload_core.so`: PipeDevice for programs that do not know of it. `LD_PRELOAD` names the loader,
//! `libpd_preload.so` (`loader/`), which loads this where it can run and jumps to its hooks.
//!
//! A program's TCP socket stays what it is, a kernel socket that the kernel binds, listens on, connects
//! and accepts. If both ends are on the fabric the connection has a *twin*, a fabric socket that carries
//! its bytes; nothing then goes over TCP, which tells who is alive. A connection without a twin is plain
//! kernel TCP, and its calls pass through after one look at a table ([`table`]).
//!
//! `hooks/` has a file per family of calls; each function of the C library's name decides by the table
//! and either calls the next one of that name ([`real`]) or works on the twin. Nothing here unwinds
//! into the program, prints (unless `PD_PRELOAD_LOG` says where to), or keeps a descriptor where the
//! program looks.
//!
//! # Floors
//!
//! A file uses files of lower floors. Entries and epoll instances hold each other, and are the one exception. From the lowest up:
//!
//! 1. The system: the C library, errno and signals, pointers, addresses, memory (`real`, `unwind`, `call`, `reach`, `address`, `heap`).
//! 2. The driver, and what speaks against connections on the fabric (`fabric`, `fallback_cache`, `confined`, `unseen`).
//! 3. What is known of one connection: its parts (`aside`, `claim`, `gain`, `back`, `short::names`), what processes share of it
//!    (`shared`), and the twin that has them (`twin`).
//! 4. Entries, epoll instances, and the table by which numbers lead to them (`entry`, `epoll_set`, `table`).
//! 5. Steps of one connection: where it is waited for, its end, taking it over, leaving, coming back; then the calls on it (`ending`,
//!    `epoll_set::standing`, `short::begun`, `short::reuse`, and the files within `aside`, `claim`, `unseen` and `twin`).
//! 6. What is done by number: registering, finding, connecting, accepting, closing (`lookup`, `connect`, `accepting`, `closing`, and
//!    the other files within `epoll_set`, `away`, `short` and `unix`), and queues of requests (`aio`).
//! 7. The hooks, and the start.

mod accepting;
mod address;
mod aio;
mod aside;
mod away;
mod back;
mod call;
mod carried;
mod claim;
mod closed;
mod closing;
mod confined;
mod connect;
mod counts;
mod ending;
mod entry;
mod epoll_set;
mod fabric;
mod fallback_cache;
mod file_lock;
mod gain;
mod heap;
mod hearsay;
mod held;
mod hooks;
mod image;
mod inherited;
mod local;
mod log;
mod lookup;
mod open_file;
mod pipe;
mod port;
mod reach;
mod real;
mod sandbox;
mod shared;
mod short;
mod sleep;
mod spin;
mod start;
mod table;
mod thread;
mod twin;
mod unix;
mod unseen;
mod unwind;
