//! `pd ls`: the containers that run now.

use anyhow::Result;
use comfy_table::{presets, Table};

use crate::container::state::{self, Record};

/// Lists containers.
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &LsArgs) -> Result<i32> {
    let containers: Vec<Record> = state::records()?.into_iter().filter(|r| r.owner.is_alive()).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "containers": containers }))?);
        return Ok(0);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["CONTAINER", "TENANT", "BRIDGE", "ADDRESS", "IPV6", "PID", "COMMAND"]);
    for c in containers {
        let pid = c.init.pid.to_string();
        table.add_row([c.name, c.tenant, c.bridge, c.address, c.address6, pid, c.command.join(" ")]);
    }
    println!("{table}");
    Ok(0)
}
