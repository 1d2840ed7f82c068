//! Engines by name, as configuration files and command lines write it: those of [`pd_engine`], and those
//! of crates that build on it.

use std::sync::Arc;

use pd_engine::{Engine, EngineError};
use pd_engine_rtl::Rtl;

/// Names of the engines that this build knows. [`by_name`] tells whether one is usable here.
pub fn names() -> impl Iterator<Item = &'static str> {
    pd_engine::NAMES.into_iter().chain(["rtl"])
}

/// Returns the engine of this name.
///
/// - `rtl`, `rtl:trace=FILE`: [`Rtl`], with a waveform of all it does in FILE;
/// - others: [`pd_engine::by_name`].
///
/// # Errors
/// [`EngineError::Unknown`] names the known engines, [`EngineError::BadOption`] the known options, and
/// [`EngineError::Unavailable`] the missing part.
pub fn by_name(name: &str) -> Result<Arc<dyn Engine>, EngineError> {
    let (engine, options) = name.split_once(':').unwrap_or((name, ""));
    match engine {
        "rtl" => Ok(Arc::new(Rtl::from_options(options)?)),
        _ => pd_engine::by_name(name).map_err(|error| match error {
            EngineError::Unknown { name, .. } => EngineError::Unknown { name, known: KNOWN },
            other => other,
        }),
    }
}

const KNOWN: &str = "cpu, fault[:OPTION,...], rtl[:trace=FILE]";

/// Returns whether an engine is a simulation, whose time is not the machine's, so that it is not measured.
pub fn is_simulated(name: &str) -> bool {
    name.split(':').next() == Some("rtl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_all_engines_and_options() {
        let error = |name: &str| by_name(name).err().expect("no such engine").to_string();
        for known in names() {
            assert!(error("dsa").contains(known), "{}", error("dsa"));
        }
        assert!(error("rtl:speed=9").contains("trace=FILE"));
    }

    #[test]
    fn engines_of_every_crate_are_found() {
        assert_eq!(by_name("cpu").unwrap().capability().name, "cpu");
        assert!(is_simulated("rtl:trace=x") && !is_simulated("cpu"));
        match by_name("rtl") {
            Ok(engine) => assert_eq!(engine.capability().name, "rtl"),
            Err(error) => assert!(error.to_string().contains("make rtl"), "{error}"),
        }
    }
}
