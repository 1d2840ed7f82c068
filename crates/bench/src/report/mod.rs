//! Reports: tables, plots, and a page with everything.

pub mod bars;
pub mod page;
pub mod plot;
pub mod results;
pub mod tables;
