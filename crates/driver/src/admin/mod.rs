//! Messages of the driver's admin socket: one JSON object a line, each way.
mod asking;
mod messages;
mod policy;
mod report;
mod service;

pub use crate::pipes::report::{
    PipeReport, PipesReport, PortReport, PortSpec, TapOf, TapReport, TenantCounts, TenantPipes,
};
pub use asking::{add_port, ask, counters, tap, Counters, Tap};
pub(crate) use asking::{receive_descriptors, send_with, tap_shape};
pub use messages::{Answer, Ask};
pub use policy::{
    Account, HoldingReport, KernelHalf, MapReport, NetworkReport, PolicyReport, RuleReport, StandingReport,
    TenantReport,
};
pub use report::{
    ClientReport, ConnectionReport, KernelClient, KernelReport, RefusedReport, Report, TakenOver,
};
pub use service::{BackendReport, ProbeFailure, ProxyReport, ServiceCounts, ServiceReport, SidecarReport};
