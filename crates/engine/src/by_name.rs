use crate::{Cpu, Engine, EngineError, Fault, FaultPlan};
use std::sync::Arc;

/// Engines that this build has.
pub const NAMES: [&str; 2] = ["cpu", "fault"];
const KNOWN: &str = "cpu, fault[:OPTION,...]";
const FAULT_OPTIONS: &str =
    "seed=NUMBER, fail=PER_MILLE (0 to 1000), delay=REAPS, dead_after=COMMANDS or reorder";

/// Returns the engine of this name, as configuration files and command lines write it.
///
/// - `cpu`: [`Cpu`].
/// - `fault`, `fault:seed=1,fail=10,delay=3,dead_after=5000,reorder`: [`Fault`] around [`Cpu`]; each
///   option is the field of [`FaultPlan`] that it resembles, and options left out keep their default.
///
/// # Errors
///
/// [`EngineError::Unknown`] names the known engines, [`EngineError::BadOption`] the known options.
pub fn by_name(name: &str) -> Result<Arc<dyn Engine>, EngineError> {
    let (engine, options) = match name.split_once(':') {
        Some((engine, options)) => (engine, Some(options)),
        None => (name, None),
    };
    match (engine, options) {
        ("cpu", None) => Ok(Arc::new(Cpu::new())),
        ("cpu", Some(options)) => {
            Err(EngineError::BadOption { engine: "cpu", option: options.into(), expected: "none" })
        }
        ("fault", options) => Ok(Arc::new(Fault::new(Arc::new(Cpu::new()), plan(options.unwrap_or(""))?))),
        _ => Err(EngineError::Unknown { name: name.into(), known: KNOWN }),
    }
}

fn plan(options: &str) -> Result<FaultPlan, EngineError> {
    let mut plan = FaultPlan::default();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        set(&mut plan, option).ok_or_else(|| EngineError::BadOption {
            engine: "fault",
            option: option.into(),
            expected: FAULT_OPTIONS,
        })?;
    }
    Ok(plan)
}

fn set(plan: &mut FaultPlan, option: &str) -> Option<()> {
    match option.split_once('=') {
        None if option == "reorder" => plan.reorder = true,
        Some(("seed", value)) => plan.seed = value.parse().ok()?,
        Some(("fail", value)) => {
            plan.fail_per_mille = value.parse().ok().filter(|per_mille| *per_mille <= 1000)?;
        }
        Some(("delay", value)) => plan.delay_reaps_max = value.parse().ok()?,
        Some(("dead_after", value)) => plan.dead_after = Some(value.parse().ok()?),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        by_name(name).err().expect("no engine of this name").to_string()
    }

    #[test]
    fn knows_the_engines() {
        for name in ["cpu", "fault"] {
            assert_eq!(by_name(name).unwrap().capability().name, name);
        }
        assert!(!by_name("fault:seed=1,fail=10,delay=3,dead_after=9,reorder").unwrap().capability().ordered);
    }

    #[test]
    fn options_reach_the_plan() {
        assert_eq!(plan("").unwrap(), FaultPlan::default());
        assert_eq!(
            plan("seed=7,fail=10,delay=3,dead_after=9,reorder").unwrap(),
            FaultPlan { seed: 7, fail_per_mille: 10, delay_reaps_max: 3, reorder: true, dead_after: Some(9) }
        );
    }

    #[test]
    fn errors_say_what_is_known() {
        assert_eq!(error("dsa"), "unknown engine \"dsa\"; known engines: cpu, fault[:OPTION,...]");
        assert!(error("cpu:fast").contains("bad option \"fast\""));
        for bad in ["fail=1001", "fail=x", "seed", "reorder=1", "speed=9"] {
            assert!(error(&format!("fault:{bad}")).contains(&format!("bad option \"{bad}\"")));
        }
    }
}
