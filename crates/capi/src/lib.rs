//! libpd: the C API, over the same core as the Rust API. Declared in `include/pd.h`, described in
//! `docs/man`. Calls return -1 (or NULL) and set `errno`; `pd_errmsg` tells more. No panic leaves the
//! library.
mod address;
mod copying;
mod data;
mod epoll;
mod forward;
mod guard;
#[cfg(test)]
mod header;
mod options;
mod pipe;
mod poll;
mod socket;
