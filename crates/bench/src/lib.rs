//! `pd bench`: PipeDevice beside its peers, in one interleaved run on one machine.
//!
//! [`catalogue`] lists schemes, places and waits, [`scheme`] has the ways to move bytes, [`run`] the peers and the rounds, [`bench`] the
//! benchmarks, [`report`] the output. Both sides of every scheme touch every byte and agree on a checksum. CPU time is that of the whole
//! machine. Schemes that the machine cannot run are results with the reason.
#![deny(unsafe_code)]

pub mod ab;
pub mod attack;
pub mod baseline;
pub mod bench;
pub mod catalogue;
pub mod cli;
pub mod files;
pub mod limits;
pub mod protocol;
pub mod report;
pub mod row;
pub mod run;
pub mod scheme;
pub mod settings;
pub mod waiting;
pub mod web;
