//! The hardware's view of this crate, generated: `rtl/gen/pd_abi_pkg.sv` (constants and bit ranges in SystemVerilog) and
//! `rtl/gen/registers.md` (the register map as tables). Both are committed, and a test fails when one is
//! stale (`UPDATE=1 cargo test -p pd-abi` writes them anew).
use crate::describe::{capitals, check};
use crate::registers::{self, Access, BLOCKS};
use crate::{limits, Command, CommandStatus, CommandType};
use core::fmt::{self, Write};
use core::mem::{offset_of, size_of};
use std::string::String;

/// Writes the SystemVerilog package to `out`: `localparam`s and nothing else, which every tool reads.
fn write(out: &mut impl Write) -> fmt::Result {
    out.write_str(
        "// Constants of the PipeDevice ABI. Generated from the pd-abi crate; do not edit.\n\
         // SPDX-License-Identifier: Apache-2.0\n\
         package pd_abi_pkg;\n",
    )?;
    number(out, "QUEUE_DEPTH", limits::QUEUE_DEPTH as u32)?;
    number(out, "QUEUES_MAX", registers::QUEUES_MAX)?;
    number(out, "BATCH_ENTRIES_MAX", registers::BATCH_ENTRIES_MAX)?;
    number(out, "CHUNK_BYTES_PAPER", limits::CHUNK_BYTES_PAPER)?;
    out.write_str("\n  // Command and completion: bits of the 256-bit word, byte 0 in bits 7:0.\n")?;
    number(out, "CMD_BYTES", size_of::<Command>() as u32)?;
    for field in Command::FIELDS {
        let name = capitals(field.name);
        number(out, format_args!("CMD_{name}_LSB"), 8 * field.offset as u32)?;
        number(out, format_args!("CMD_{name}_BITS"), 8 * field.bytes as u32)?;
    }
    number(out, "CMD_PHASE_LSB", 8 * offset_of!(Command, reserved) as u32 + Command::PHASE.trailing_zeros())?;
    for (prefix, kinds) in [("TYPE", CommandType::DECLARED), ("STATUS", CommandStatus::DECLARED)] {
        for kind in kinds {
            number(out, format_args!("{prefix}_{}", capitals(kind.name)), kind.value as u32)?;
        }
    }
    write_registers(out)?;
    out.write_str("endpackage\n")
}

fn write_registers(out: &mut impl Write) -> fmt::Result {
    out.write_str("\n  // Registers: REG_x is an offset in BAR 0, or within a block that has REG_x_BASE.\n")?;
    hex(out, "BAR_BYTES", registers::BAR_BYTES)?;
    hex(out, "DEVICE_ID", registers::DEVICE_ID)?;
    number(out, "DEVICE_VERSION", registers::DEVICE_VERSION)?;
    for block in BLOCKS {
        let prefix = block.prefix;
        if block.stride > 0 {
            hex(out, format_args!("REG_{prefix}BASE"), block.base)?;
            hex(out, format_args!("REG_{prefix}STRIDE"), block.stride)?;
        }
        for register in block.registers {
            hex(out, format_args!("REG_{prefix}{}", register.name), register.offset)?;
            for field in register.fields {
                number(out, format_args!("{prefix}{}_LSB", field.name), field.lsb)?;
                number(out, format_args!("{prefix}{}_BITS", field.name), field.bits)?;
            }
            if let (Access::ReadWrite, Some(reset)) = (register.access, register.reset) {
                number(out, format_args!("{prefix}{}_RESET", register.name), reset)?;
            }
        }
    }
    Ok(())
}

fn number(out: &mut impl Write, name: impl fmt::Display, value: u32) -> fmt::Result {
    writeln!(out, "  localparam int unsigned {name} = {value};")
}

fn hex(out: &mut impl Write, name: impl fmt::Display, value: u32) -> fmt::Result {
    writeln!(out, "  localparam int unsigned {name} = 32'h{value:04x};")
}

/// Writes the register map to `out` as tables in Markdown.
fn write_tables(out: &mut impl Write) -> fmt::Result {
    out.write_str("# Registers\n\n<!-- Generated from the pd-abi crate; do not edit. -->\n")?;
    for block in BLOCKS {
        let (base, stride, last) = (block.base, block.stride, block.count - 1);
        out.write_str("\n")?;
        match (block.prefix.trim_end_matches('_'), stride) {
            (_, 0) => writeln!(out, "## Device, at {base:#06x}\n")?,
            (name, _) => writeln!(out, "## {name}, at {base:#06x} + {stride:#x} × index (0 to {last})\n")?,
        }
        out.write_str("| offset | register | bits | access | reset | |\n|---|---|---|---|---|---|\n")?;
        for register in block.registers {
            let access = match register.access {
                Access::ReadOnly => "RO",
                Access::ReadWrite => "RW",
                Access::WriteOnly => "WO",
            };
            write!(out, "| {:#04x} | `{}` | 31:0 | {access} | ", register.offset, register.name)?;
            match register.reset {
                Some(reset) if reset > 65_535 => write!(out, "{reset:#x}")?,
                Some(reset) => write!(out, "{reset}")?,
                None => out.write_str("–")?,
            }
            writeln!(out, " | {} |", register.text)?;
            for field in register.fields {
                let name = field.name[register.name.len()..].trim_start_matches('_');
                write!(out, "| | `.{name}` | ")?;
                match field.bits {
                    1 => write!(out, "{}", field.lsb)?,
                    bits => write!(out, "{}:{}", field.lsb + bits - 1, field.lsb)?,
                }
                writeln!(out, " | | | {} |", field.text)?;
            }
        }
    }
    Ok(())
}

#[test]
fn committed_package_is_fresh() {
    let mut text = String::new();
    write(&mut text).unwrap();
    check("../../rtl/gen/pd_abi_pkg.sv", &text);
}

#[test]
fn committed_register_tables_are_fresh() {
    let mut text = String::new();
    write_tables(&mut text).unwrap();
    check("../../rtl/gen/registers.md", &text);
}
