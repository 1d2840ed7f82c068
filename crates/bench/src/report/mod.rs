//! What people see: tables, plots, and a page with everything.

pub mod baseline;
pub mod page;
pub mod plot;
pub mod tables;
