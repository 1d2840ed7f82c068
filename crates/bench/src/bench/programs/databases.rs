//! Databases: a process (PostgreSQL) or a thread (MariaDB) for each connection, which blocks in it.
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde_json::json;

use super::{words, Load, Work};
use crate::catalogue::Scheme;
use crate::row::Params;

/// pgbench: `clients` clients, each with a connection and one SELECT after the other.
pub(super) struct Postgresql {
    pub clients: u32,
    /// By a socket file, and not by TCP.
    pub unix: bool,
}

/// PostgreSQL does not run as root.
const AS_POSTGRES: &str = "runuser -u postgres --";
/// Debian has its programs in a folder for each version.
const POSTGRESQL: &str = "/usr/lib/postgresql";

/// Returns the path of a program of the newest version.
fn postgresql(program: &str) -> Result<PathBuf> {
    let versions = std::fs::read_dir(POSTGRESQL).context("PostgreSQL is not installed")?;
    let newest = versions.flatten().map(|version| version.path().join("bin").join(program)).max();
    newest.context("PostgreSQL is not installed")
}

impl Postgresql {
    fn client_command(&self, server: &str, dir: &Path, arguments: &str) -> Vec<String> {
        let program = postgresql("pgbench").unwrap_or_default();
        let host = if self.unix { dir.display().to_string() } else { server.to_owned() };
        words(&format!("{} -h {host} -U postgres {arguments} postgres", program.display()))
    }
}

impl Load for Postgresql {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    fn params(&self) -> Params {
        let unix = self.unix.then_some(("unix", json!(true)));
        [("clients", json!(self.clients))].into_iter().chain(unix).collect()
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        &[(POSTGRESQL, "postgresql")]
    }

    fn port(&self) -> u16 {
        5432
    }

    fn server(&self, dir: &Path) -> Result<Vec<String>> {
        std::os::unix::fs::chown(dir, Some(user("postgres")?), None)?;
        // The benchmark's own folder, which that user has to pass.
        let above = dir.parent().context("the folder lies in another")?;
        std::fs::set_permissions(above, Permissions::from_mode(0o711))?;
        let data = dir.join("postgresql");
        if !data.exists() {
            let make =
                format!("{AS_POSTGRES} {} --no-sync --auth trust --pgdata", postgresql("initdb")?.display());
            let make = words(&make);
            let made = Command::new(&make[0]).args(&make[1..]).arg(&data).current_dir("/").output()?;
            ensure!(made.status.success(), "initdb fails: {}", String::from_utf8_lossy(&made.stderr));
            let access = data.join("pg_hba.conf");
            let text = std::fs::read_to_string(&access)? + "host all all 0.0.0.0/0 trust\n";
            std::fs::write(access, text)?;
        }
        let (program, at, data) = (postgresql("postgres")?, dir.display(), data.display());
        let mut line =
            format!("{AS_POSTGRES} {} -D {data} -c listen_addresses=* -c fsync=off", program.display());
        line += &format!(" -c unix_socket_directories={at} -c shared_buffers=64MB");
        Ok(words(&line))
    }

    fn set_up(&self, server: &str, dir: &Path) -> Option<Vec<String>> {
        Some(self.client_command(server, dir, "--quiet --initialize --scale 2"))
    }

    fn client(&self, _scheme: Scheme, server: &str, dir: &Path, seconds: f64, _requests: u64) -> Vec<String> {
        let (clients, seconds) = (self.clients, seconds.ceil().max(1.0));
        let load = format!("--no-vacuum --select-only --protocol prepared -c {clients} -j 2 -T {seconds}");
        self.client_command(server, dir, &load)
    }

    fn parse(&self, text: &str, _requests: u64) -> Option<Work> {
        let after = |start: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(start))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let count = after("number of transactions actually processed: ")?;
        let rate = after("tps = ")?;
        (after("number of failed transactions: ") == Some(0.0)).then_some(Work::Requests(count, count / rate))
    }
}

fn user(name: &str) -> Result<u32> {
    let text = std::fs::read_to_string("/etc/passwd")?;
    let line = text.lines().find(|line| line.starts_with(&format!("{name}:")));
    let id = line.and_then(|line| line.split(':').nth(2)?.parse().ok());
    id.with_context(|| format!("there is no user {name}"))
}

/// sysbench's selects by key, from `threads` threads with a connection each.
pub(super) struct Mariadb {
    pub threads: u32,
}

const SELECTS: &str = "/usr/share/sysbench/oltp_point_select.lua --mysql-user=pd --mysql-db=test --tables=1 \
    --table-size=10000 --db-driver=mysql";

impl Load for Mariadb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn params(&self) -> Params {
        vec![("threads", json!(self.threads))]
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        &[("mariadbd", "mariadb-server"), ("sysbench", "sysbench")]
    }

    fn port(&self) -> u16 {
        3306
    }

    fn server(&self, dir: &Path) -> Result<Vec<String>> {
        let (at, data) = (dir.display(), dir.join("mariadb"));
        let start = dir.join("start.sql");
        if !data.exists() {
            let make = Command::new("mariadb-install-db")
                .args(["--no-defaults", "--user=root", "--skip-test-db"])
                .arg(format!("--datadir={}", data.display()))
                .output()?;
            ensure!(
                make.status.success(),
                "mariadb-install-db fails: {}",
                String::from_utf8_lossy(&make.stderr)
            );
            let text = "create database if not exists test; create user if not exists pd@'%'; grant all on test.* to pd@'%';";
            std::fs::write(&start, text.replace("; ", ";\n") + "\n")?;
        }
        let (data, start) = (data.display(), start.display());
        let mut line = format!("mariadbd --no-defaults --user=root --datadir={data} --bind-address=0.0.0.0");
        line += &format!(" --socket={at}/mariadb.sock --pid-file={at}/mariadb.pid --init-file={start}");
        line += " --skip-name-resolve --innodb-flush-log-at-trx-commit=0";
        Ok(words(&line))
    }

    fn set_up(&self, server: &str, _dir: &Path) -> Option<Vec<String>> {
        Some(words(&format!("sysbench {SELECTS} --mysql-host={server} prepare")))
    }

    fn client(
        &self,
        _scheme: Scheme,
        server: &str,
        _dir: &Path,
        seconds: f64,
        _requests: u64,
    ) -> Vec<String> {
        let (threads, seconds) = (self.threads, seconds.ceil().max(1.0));
        words(&format!("sysbench {SELECTS} --mysql-host={server} --threads={threads} --time={seconds} run"))
    }

    fn parse(&self, text: &str, _requests: u64) -> Option<Work> {
        // "    queries:    80116  (20018.67 per sec.)".
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix("queries:"))?;
        let mut words = line.split_whitespace();
        let count: f64 = words.next()?.parse().ok()?;
        let rate: f64 = words.next()?.trim_start_matches('(').parse().ok()?;
        Some(Work::Requests(count, count / rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_they_print_is_understood() {
        let pgbench = Postgresql { clients: 8, unix: false };
        let text =
            "number of transactions actually processed: 2000\nnumber of failed transactions: 0 (0.000%)\n\
                    tps = 500.0 (without initial connection time)\n";
        assert_eq!(pgbench.parse(text, 0), Some(Work::Requests(2000.0, 4.0)));
        assert_eq!(pgbench.parse(&text.replace(": 0 (", ": 3 ("), 0), None);
        let text = "SQL statistics:\n    queries:          80116  (20029.0 per sec.)\n";
        assert_eq!(Mariadb { threads: 16 }.parse(text, 0), Some(Work::Requests(80116.0, 4.0)));
    }
}
