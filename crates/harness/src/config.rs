//! The driver's configuration: a TOML file in which everything is optional; every value has a range, and a value outside
//! it is refused by name.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use pd_driver::policy::{read_policy_file, Path as BytesPath};
use pd_driver::{Bytes, HugepageUse, Namespaces, Policy, Settings};
use serde::{Deserialize, Serialize};

/// Default socket on which the driver listens for clients.
pub const DEFAULT_SOCKET: &str = "/run/pipedevice/driver.sock";

/// Default socket on which the driver answers `pd ls` and `pd doctor`.
pub const DEFAULT_ADMIN_SOCKET: &str = "/run/pipedevice/admin.sock";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Configuration of the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Socket that clients attach to.
    pub socket: PathBuf,
    /// Socket that answers `pd ls` and the like.
    pub admin_socket: PathBuf,
    /// Permissions of `socket`, octal; `admin_socket` is for its owner alone.
    pub socket_mode: String,
    /// Group of `socket`; the driver's own if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Policy file, read again on SIGHUP; everything is allowed if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PathBuf>,
    /// Memory.
    pub memory: MemoryConfig,
    /// Threads, engines and limits.
    pub driver: DriverConfig,
    /// Metrics for Prometheus.
    pub metrics: MetricsConfig,
    /// Logging.
    pub log: LogConfig,
}

/// The `[memory]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Memory of all regions together.
    pub budget_bytes: Bytes,
    /// Memory of one client's regions at most; half of the budget if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_budget_bytes: Option<Bytes>,
    /// Use of 2 MB hugepages.
    pub hugepages: HugepageUse,
    /// Send and receive ring of a socket that sets no size; a power of two.
    pub ring_bytes_default: Bytes,
}

/// The `[driver]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverConfig {
    /// Movers: by load, or a fixed number.
    pub movers: Movers,
    /// The processors that movers keep to, in turn; any, if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mover_cores: Vec<usize>,
    /// Engine that moves the bytes, as `pd doctor` names them.
    pub engine: String,
    /// Microseconds that a mover looks for work at most before it sleeps.
    pub spin_us: u64,
    /// Milliseconds after which an idle ring is reclaimed.
    pub idle_ring_ms: u64,
    /// Connections of all clients together.
    pub connections_max: u64,
    /// Processes that are served.
    pub namespaces: Namespaces,
    /// Connections outlive a crash, if the service manager stores descriptors.
    pub crash_store: bool,
}

/// Number of movers of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "\"auto\" or a number was expected for movers")]
pub enum Movers {
    /// At most one for every two processors; those beyond the first run only while there is load for them.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// A fixed number.
    Count(u64),
}

/// The text `"auto"`.
mod auto {
    use serde::{de::Error, Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("auto")
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "auto" => Ok(()),
            other => Err(D::Error::custom(format!("unknown number of movers: {other}"))),
        }
    }
}

/// Processors for each mover: two run the sender and the receiver.
const PROCESSORS_PER_MOVER: usize = 2;
/// More movers than this only if somebody says so.
const MOVERS_AUTO_MAX: usize = 16;

impl Movers {
    /// Returns the movers on a machine with `processors` processors.
    fn count(self, processors: usize) -> usize {
        match self {
            Self::Auto => (processors / PROCESSORS_PER_MOVER).clamp(1, MOVERS_AUTO_MAX),
            Self::Count(count) => count as usize,
        }
    }
}

impl std::fmt::Display for Movers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

/// The `[metrics]` table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Address for scrapes: `ADDRESS:PORT`, or a port of the loopback address; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

impl MetricsConfig {
    /// Returns the address for scrapes, if any.
    ///
    /// # Errors
    /// If the text is neither an address with a port nor a port.
    pub fn address(&self) -> Result<Option<SocketAddr>> {
        let Some(text) = &self.listen else { return Ok(None) };
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
        }
        let address = text.parse().ok().with_context(|| {
            format!(
                "metrics.listen = \"{text}\" is not usable; use \"127.0.0.1:PORT\", \"[::1]:PORT\" or \"PORT\""
            )
        })?;
        Ok(Some(address))
    }
}

/// The `[log]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Lowest level that is logged.
    pub level: LogLevel,
}

/// Log levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            socket: PathBuf::from(DEFAULT_SOCKET),
            admin_socket: PathBuf::from(DEFAULT_ADMIN_SOCKET),
            socket_mode: "0666".to_owned(),
            socket_group: None,
            policy: None,
            memory: MemoryConfig::default(),
            driver: DriverConfig::default(),
            metrics: MetricsConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        // 4 GiB as in the paper (section IV-A), or half of a smaller machine's memory.
        let info = rustix::system::sysinfo();
        let memory = info.totalram.saturating_mul(info.mem_unit.into());
        let budget = (memory / 2 / (16 * MIB) * (16 * MIB)).clamp(16 * MIB, 4 * GIB);
        MemoryConfig {
            budget_bytes: Bytes(budget),
            client_budget_bytes: None,
            hugepages: HugepageUse::Auto,
            ring_bytes_default: Bytes(4 * MIB),
        }
    }
}

impl MemoryConfig {
    fn client_budget(&self) -> Bytes {
        self.client_budget_bytes.unwrap_or(Bytes(self.budget_bytes.0 / 2))
    }
}

impl Default for DriverConfig {
    fn default() -> DriverConfig {
        DriverConfig {
            movers: Movers::Auto,
            mover_cores: Vec::new(),
            engine: "cpu".to_owned(),
            spin_us: 50,
            idle_ring_ms: 1_000,
            connections_max: 65_536,
            namespaces: Namespaces::All,
            crash_store: true,
        }
    }
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { level: LogLevel::Info }
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Config> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        Config::parse(&text).with_context(|| format!("the configuration {} is not usable", path.display()))
    }

    /// Reads and checks the text of a file.
    pub fn parse(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Returns the permissions of the sockets as a number.
    pub fn socket_mode_bits(&self) -> Result<u32> {
        match u32::from_str_radix(&self.socket_mode, 8) {
            Ok(mode) if mode <= 0o777 => Ok(mode),
            _ => bail!(
                "socket_mode = \"{}\" is no file mode; use three octal digits, \"0000\" to \"0777\"",
                self.socket_mode
            ),
        }
    }

    /// Reads and checks the policy file, if there is one.
    pub fn read_policy(&self) -> Result<Policy> {
        match &self.policy {
            Some(path) if !path.is_absolute() => {
                bail!("policy = \"{}\" is not usable; use an absolute path", path.display())
            }
            Some(path) => Ok(read_policy(path)?.1),
            None => Ok(Policy::default()),
        }
    }

    fn check(&self) -> Result<()> {
        self.read_policy()?;
        let (memory, driver) = (&self.memory, &self.driver);
        socket_path("socket", &self.socket)?;
        socket_path("admin_socket", &self.admin_socket)?;
        if self.socket == self.admin_socket {
            bail!("socket and admin_socket are both {}; give them two paths", self.socket.display());
        }
        self.socket_mode_bits()?;
        self.metrics.address()?;
        bytes("memory.budget_bytes", memory.budget_bytes, 16 * MIB, 1024 * GIB)?;
        let client_budget = memory.client_budget();
        bytes("memory.client_budget_bytes", client_budget, 2 * MIB, memory.budget_bytes.0)?;
        let ring = memory.ring_bytes_default;
        bytes("memory.ring_bytes_default", ring, 64 * KIB, (client_budget.0 / 2).min(GIB))?;
        if !ring.0.is_power_of_two() {
            bail!("memory.ring_bytes_default = {ring} is no power of two; use 64KiB, 128KiB, ... 4MiB, ...");
        }
        crate::engines::by_name(&driver.engine)
            .with_context(|| format!("driver.engine = \"{}\" is not usable", driver.engine))?;
        if let Movers::Count(count) = driver.movers {
            number("driver.movers", count, 1, 64)?;
        }
        for &core in &driver.mover_cores {
            number("driver.mover_cores", core as u64, 0, CORE_MAX)?;
        }
        number("driver.spin_us", driver.spin_us, 0, 10_000)?;
        number("driver.idle_ring_ms", driver.idle_ring_ms, 1, 86_400_000)?;
        number("driver.connections_max", driver.connections_max, 1, 1 << 24)
    }
}

/// The last processor that a mover may be kept to.
const CORE_MAX: u64 = 1023;

fn number(key: &str, value: u64, low: u64, high: u64) -> Result<()> {
    if !(low..=high).contains(&value) {
        bail!("{key} = {value} is out of range; use {low} to {high}");
    }
    Ok(())
}

fn bytes(key: &str, value: Bytes, low: u64, high: u64) -> Result<()> {
    if !(low..=high).contains(&value.0) {
        bail!("{key} = {value} is out of range; use {} to {}", Bytes(low), Bytes(high));
    }
    Ok(())
}

fn socket_path(key: &str, path: &Path) -> Result<()> {
    // sun_path holds 108 bytes with the closing zero.
    if !path.is_absolute() || path.as_os_str().len() > 107 {
        bail!("{key} = \"{}\" is not usable; use an absolute path of at most 107 bytes", path.display());
    }
    Ok(())
}

impl Config {
    /// Returns the settings for the driver library.
    ///
    /// # Errors
    /// If this machine lacks a requested resource, or the policy cannot be read.
    pub fn settings(&self) -> Result<Settings> {
        let (budget, machine) =
            (self.memory.budget_bytes, Bytes(crate::machine::memory().map_or(0, |memory| memory.mem_total)));
        if budget > machine {
            bail!("memory.budget_bytes = {budget} is more than this machine has; use {machine} at most");
        }
        Ok(Settings {
            socket: self.socket.clone(),
            admin_socket: self.admin_socket.clone(),
            socket_mode: self.socket_mode_bits()?,
            socket_group: self.socket_group.as_deref().map(group_id).transpose()?,
            budget_bytes: self.memory.budget_bytes.0,
            client_budget_bytes: self.memory.client_budget().0,
            hugepages: self.memory.hugepages,
            ring_bytes_default: self.memory.ring_bytes_default.0,
            namespaces: self.driver.namespaces,
            crash_store: self.driver.crash_store,
            movers: self.driver.movers.count(std::thread::available_parallelism().map_or(1, usize::from)),
            movers_auto: self.driver.movers == Movers::Auto,
            mover_cores: self.driver.mover_cores.clone(),
            spin: Duration::from_micros(self.driver.spin_us),
            ring_idle: Duration::from_millis(self.driver.idle_ring_ms),
            connections_max: usize::try_from(self.driver.connections_max)?,
            // An engine of hardware is meant to carry the bytes, and a faulty one to be tested.
            path: if self.driver.engine == "cpu" { BytesPath::Direct } else { BytesPath::Offloaded },
            policy: self.read_policy()?,
            policy_file: self.policy.clone(),
            ..Settings::default()
        })
    }
}

/// Reads and checks a policy file. Returns its text, too.
pub fn read_policy(path: &Path) -> Result<(String, Policy)> {
    let text =
        read_policy_file(path).map_err(|why| anyhow!("cannot read the policy {}: {why}", path.display()))?;
    let policy =
        Policy::parse(&text).map_err(|why| anyhow!("the policy {} is not usable: {why}", path.display()))?;
    Ok((text, policy))
}

/// Returns the number of a group, given by name or number.
fn group_id(group: &str) -> Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").context("cannot read /etc/group")?;
    let found = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    });
    found.with_context(|| format!("socket_group = \"{group}\" is no group of this machine; groupadd {group}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn the_guide_has_every_key_and_its_default() {
        let guide = include_str!("../../../docs/guides/configuration.md");
        let rows = guide.lines().filter_map(|line| line.strip_prefix("| `"));
        let told: Vec<(&str, &str)> =
            rows.filter_map(|row| Some((row.split_once('`')?.0, row.split('|').nth(1)?.trim()))).collect();
        // The budget follows the machine, and absent keys have no default value.
        let silent = [
            "driver.mover_cores",
            "memory.budget_bytes",
            "memory.client_budget_bytes",
            "socket_group",
            "policy",
            "metrics.listen",
        ];
        let defaults: toml::Table = toml::from_str(&toml::to_string(&Config::default()).unwrap()).unwrap();
        for (name, value) in &defaults {
            let inner = value
                .as_table()
                .cloned()
                .unwrap_or_else(|| [(String::new(), value.clone())].into_iter().collect());
            for (key, value) in inner {
                let name = if key.is_empty() { name.clone() } else { format!("{name}.{key}") };
                let (_, default) =
                    told.iter().find(|(told, _)| *told == name).unwrap_or_else(|| panic!("{name}"));
                let plain = |text: &str| text.replace(['`', '"', ','], "").replace(' ', "");
                if !silent.contains(&name.as_str()) {
                    let bytes = value.as_integer().filter(|_| name.contains("bytes"));
                    let value = bytes.map_or(value.to_string(), |bytes| Bytes(bytes as u64).to_string());
                    assert_eq!(plain(default), plain(&value), "{name}");
                }
            }
        }
        assert_eq!(told.len(), 19, "a key that the guide has and the configuration has not");
    }

    #[test]
    fn nothing_is_required() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn every_field_is_read() {
        let config = Config::parse(
            r#"
            socket = "/tmp/s"
            admin_socket = "/tmp/a"
            socket_mode = "0600"
            socket_group = "pipedevice"
            [memory]
            budget_bytes = "4GiB"
            client_budget_bytes = 134217728
            hugepages = "require"
            ring_bytes_default = "8MiB"
            [driver]
            movers = 2
            mover_cores = [0, 1]
            engine = "cpu"
            spin_us = 0
            idle_ring_ms = 500
            connections_max = 100
            namespaces = "own"
            [metrics]
            listen = "9100"
            [log]
            level = "debug"
            "#,
        )
        .unwrap();
        assert_eq!(config.memory.budget_bytes, Bytes(4 * GIB));
        assert_eq!(config.memory.client_budget(), Bytes(128 * MIB));
        assert_eq!(config.memory.hugepages, HugepageUse::Require);
        assert_eq!(config.socket_mode_bits().unwrap(), 0o600);
        assert_eq!((config.driver.movers, config.log.level), (Movers::Count(2), LogLevel::Debug));
        assert_eq!(config.driver.mover_cores, [0, 1]);
        assert_eq!(config.driver.namespaces, Namespaces::Own);
    }

    #[test]
    fn movers_are_as_many_as_processors_are_for() {
        let counts = [1, 2, 3, 4, 8, 64].map(|processors| Movers::Auto.count(processors));
        assert_eq!(counts, [1, 1, 1, 2, 4, 16]);
        assert_eq!(Movers::Count(3).count(1), 3);
        let config = Config::parse("[driver]\nmovers = \"auto\"").unwrap();
        assert_eq!(config, Config::default());
        assert!(error("[driver]\nmovers = \"many\"").contains("auto"));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let printed = toml::to_string(&Config::default()).unwrap();
        assert_eq!(Config::parse(&printed).unwrap(), Config::default());
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        for (text, key, value, range) in [
            ("[driver]\nmovers = 0", "driver.movers", "0", "1 to 64"),
            ("[driver]\nmovers = 65", "driver.movers", "65", "1 to 64"),
            ("[driver]\nmover_cores = [0, 1024]", "driver.mover_cores", "1024", "0 to 1023"),
            ("[driver]\nconnections_max = 0", "driver.connections_max", "0", "1 to 16777216"),
            ("[driver]\nidle_ring_ms = 0", "driver.idle_ring_ms", "0", "1 to 86400000"),
            ("[driver]\nspin_us = 10001", "driver.spin_us", "10001", "0 to 10000"),
            ("[memory]\nbudget_bytes = \"1MiB\"", "memory.budget_bytes", "1MiB", "16MiB to 1TiB"),
            (
                "[memory]\nbudget_bytes = \"1GiB\"\nclient_budget_bytes = \"2GiB\"",
                "memory.client_budget_bytes",
                "2GiB",
                "2MiB to 1GiB",
            ),
            (
                "[memory]\nring_bytes_default = 3000000",
                "memory.ring_bytes_default",
                "3000000",
                "power of two",
            ),
            ("socket_mode = \"0888\"", "socket_mode", "0888", "0777"),
            ("[metrics]\nlisten = \"here\"", "metrics.listen", "here", "127.0.0.1:PORT"),
            ("socket = \"relative\"", "socket", "relative", "absolute"),
        ] {
            let error = error(text);
            for part in [key, value, range] {
                assert!(error.contains(part), "'{part}' is missing in: {error}");
            }
        }
    }

    #[test]
    fn memory_that_the_machine_has_not_is_refused_with_what_it_has() {
        let config = Config::parse("[memory]\nbudget_bytes = \"1TiB\"").unwrap();
        let error = config.settings().unwrap_err().to_string();
        let machine = Bytes(crate::machine::memory().unwrap().mem_total).to_string();
        assert!(error.contains("1TiB") && error.contains(&machine), "{error}");
    }

    #[test]
    fn metrics_listen_on_loopback_unless_told_otherwise() {
        let address = |text: &str| MetricsConfig { listen: Some(text.to_owned()) }.address();
        assert_eq!(address("9100").unwrap().unwrap(), "127.0.0.1:9100".parse().unwrap());
        assert_eq!(address("[::1]:9100").unwrap().unwrap(), "[::1]:9100".parse().unwrap());
        assert_eq!(MetricsConfig::default().address().unwrap(), None);
        for text in ["", "70000", "127.0.0.1", "host:1"] {
            assert!(address(text).unwrap_err().to_string().contains("metrics.listen"), "{text}");
        }
    }

    #[test]
    fn what_is_unknown_or_of_the_wrong_kind_is_named() {
        for (text, part) in [
            ("sockett = \"/x\"", "sockett"),
            ("[memory]\nbudget = 1", "budget"),
            ("[driver]\nengine = \"warp\"", "warp"),
            ("[driver]\nmovers = -1", "movers"),
            ("[driver]\nnamespaces = \"some\"", "namespaces"),
            ("[memory]\nbudget_bytes = \"many\"", "'many'"),
            ("[memory]\nbudget_bytes = 1.5", "budget_bytes"),
            ("[memory]\nhugepages = \"maybe\"", "maybe"),
            ("[log]\nlevel = \"loud\"", "loud"),
            ("not toml", "expected"),
        ] {
            let error = error(text);
            assert!(error.contains(part), "'{part}' is missing in: {error}");
        }
    }
}
