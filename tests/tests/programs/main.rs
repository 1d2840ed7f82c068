//! Whole unmodified programs, between two containers. Each runs over kernel TCP without the library first and
//! has to give the same output with it, over the fabric. The driver's counters show the path. After a kill at
//! any moment, nothing of it may be left. Needs root and the programs themselves: `make test-programs`
//! installs them.
mod pair;
mod site;

mod erlang;
mod haproxy;
mod iperf3;
mod java;
mod memcached;
mod nginx;
mod node;
mod postgresql;
mod python;
mod redis;
mod sidecars;
mod smol;
mod suites;
mod takeover;
mod tokio;
