//! `pd policy`: rules on connections, their rates, and their effects. The file format is the driver's
//! (`pd_driver::policy`).

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Context, Result};
use comfy_table::{presets, Table};
use pd_driver::admin::{ask, Answer, Ask, HoldingReport, PolicyReport, TenantReport};
use pd_driver::Bytes;

use pd_harness::config::{read_policy, DEFAULT_ADMIN_SOCKET};

use crate::live::no_answer;
use crate::{refused, services, sidecars};

/// Checks, shows and changes the driver's policy: tenants, rules, rates, quotas, service addresses.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Read a policy file, say what it means or what is wrong with it, and change nothing
    Check {
        /// The file
        file: PathBuf,
    },
    /// Show the policy in force, how often each rule decided, and the tenants' accounts
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Admin socket of the driver
        #[arg(long, default_value = DEFAULT_ADMIN_SOCKET)]
        admin_socket: PathBuf,
    },
    /// Put a policy in force now: new rates hold for open connections, and those that it denies are ended
    ///
    /// Connections end with ECONNRESET on both sides. Without FILE the driver's own policy file is read again,
    /// as SIGHUP to the driver does; another FILE is in force until then or until the driver ends.
    Apply {
        /// The file [default: the one that the driver's configuration names]
        file: Option<PathBuf>,
        /// Admin socket of the driver
        #[arg(long, default_value = DEFAULT_ADMIN_SOCKET)]
        admin_socket: PathBuf,
    },
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &PolicyArgs) -> Result<i32> {
    pd_harness::sys::end_on_closed_output();
    match &args.command {
        Command::Check { file } => {
            let (_, policy) = read_policy(file)?;
            print!("{policy}");
            for sentence in pd_driver::gate::unbound(&policy) {
                println!("not on the kernel: {sentence}");
            }
        }
        Command::Show { json: true, admin_socket } => {
            println!("{}", serde_json::to_string_pretty(&report(admin_socket)?)?);
        }
        Command::Show { json: false, admin_socket } => print_report(&report(admin_socket)?),
        Command::Apply { file, admin_socket } => apply(file.as_deref(), admin_socket)?,
    }
    Ok(0)
}

fn tell(admin_socket: &Path, what: &Ask) -> Result<Answer> {
    ask(admin_socket, what).map_err(|error| anyhow!(no_answer(admin_socket, &error)))
}

fn report(admin_socket: &Path) -> Result<PolicyReport> {
    match tell(admin_socket, &Ask::Policy)? {
        Answer::Policy(report) => Ok(*report),
        _ => bail!("the driver at {} is of another version", admin_socket.display()),
    }
}

fn apply(file: Option<&Path>, admin_socket: &Path) -> Result<()> {
    let path = match file {
        Some(file) => file.to_owned(),
        None => report(admin_socket)?.file.context(
            "the driver's configuration names no policy file; name one here, or add policy = \"...\" to it",
        )?,
    };
    let (text, _) = read_policy(&path)?;
    match tell(admin_socket, &Ask::Apply { text })? {
        Answer::Applied { cut, cut_on_kernel, kept_on_kernel, not_on_kernel } => {
            println!(
                "in force: {}; connections ended: {cut}, on the kernel: {cut_on_kernel}",
                path.display()
            );
            if kept_on_kernel > 0 {
                println!(
                    "{kept_on_kernel} connections on the kernel are denied and stay open: the driver has no CAP_NET_ADMIN, \
                     or the kernel no CONFIG_INET_DIAG_DESTROY"
                );
            }
            if let Some(why) = not_on_kernel {
                println!("connections on the kernel are not bound: {why}");
            }
            pd_harness::container::hosts::renew(admin_socket)
                .context("names of containers stay as they were")?;
            sidecars::absent(&report(admin_socket)?.sidecars).iter().for_each(|line| println!("{line}"));
        }
        _ => bail!("the driver at {} is of another version", admin_socket.display()),
    }
    Ok(())
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

fn print_report(report: &PolicyReport) {
    match &report.file {
        Some(file) => println!("policy file {}\n", file.display()),
        None => println!("no policy file\n"),
    }
    let mut rules = table(["RULE", "HITS", ""]);
    for (index, rule) in report.rules.iter().enumerate() {
        rules.add_row([(index + 1).to_string(), rule.hits.to_string(), rule.rule.clone()]);
    }
    println!("{rules}");
    println!("\npath without rates: {}", report.path);
    match (&report.kernel.why_not, report.kernel.in_force) {
        (Some(why), _) => println!("connections on the kernel: NOT BOUND: {why}"),
        (None, true) => println!("connections on the kernel: bound"),
        (None, false) => println!("connections on the kernel: the policy says nothing of them"),
    }
    for sentence in &report.kernel.unbound {
        println!("not on the kernel: {sentence}");
    }
    for network in &report.networks {
        println!("network {network}");
    }
    for line in report.attach.iter().chain(&refused::lines(&report.attaches_refused_by_reason)) {
        println!("{line}");
    }
    if !report.services.is_empty() {
        println!("\n{}", services::table(&report.services));
    }
    if !report.sidecars.is_empty() {
        println!("\n{}", sidecars::table(&report.sidecars));
    }
    println!("\n{}", accounts(&report.tenants));
    println!("\n{}", holdings(&report.tenants));
    for said in report.tenants.iter().filter_map(|tenant| tenant.policy.as_ref()) {
        println!("tenant {said}");
    }
}

/// Returns a table of the traffic of tenants.
fn accounts(all: &[TenantReport]) -> Table {
    let header = [
        "TENANT",
        "OPEN",
        "MADE",
        "ACCEPTED",
        "DENIED",
        "OVER QUOTA",
        "BYTES SENT",
        "RECEIVED",
        "MESSAGES SENT",
        "RECEIVED",
        "RATE WAITS",
    ];
    let mut tenants = table(header);
    for tenant in all {
        let a = &tenant.account;
        let numbers = [
            a.connections_open,
            a.connections_made,
            a.connections_accepted,
            a.connections_denied,
            a.connections_over_quota,
            a.bytes_sent,
            a.bytes_received,
            a.messages_sent,
            a.messages_received,
            tenant.rate_waits,
        ];
        tenants.add_row([tenant.name.clone()].into_iter().chain(numbers.map(|n| n.to_string())));
    }
    tenants
}

/// Returns a table of what the users of tenants hold.
fn holdings(all: &[TenantReport]) -> Table {
    let mut holdings =
        table(["TENANT", "USER", "CLIENTS", "OF", "DESCRIPTORS", "OF", "MEMORY", "OF", "REFUSED"]);
    for tenant in all {
        for holding in &tenant.holdings {
            let HoldingReport { user, clients, descriptors, memory_bytes } = holding;
            let refused = clients.refused + descriptors.refused + memory_bytes.refused;
            holdings.add_row([
                tenant.name.clone(),
                user.map_or_else(String::new, |user| user.to_string()),
                clients.used.to_string(),
                clients.max.to_string(),
                descriptors.used.to_string(),
                descriptors.max.to_string(),
                Bytes(memory_bytes.used).to_string(),
                Bytes(memory_bytes.max).to_string(),
                refused.to_string(),
            ]);
        }
    }
    holdings
}
