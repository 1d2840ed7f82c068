//! Byte counts on the command line and in files.
pub use pd_driver::Bytes;
