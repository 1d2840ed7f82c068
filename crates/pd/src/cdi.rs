//! `pd cdi`: describes PipeDevice to container engines, in the form of the Container Device Interface
//! (CDI 0.5): two devices, `pipedevice/fabric=native` and `pipedevice/fabric=preload`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

const KIND: &str = "pipedevice/fabric";
const PRELOAD_CORE: &str = "libpd_preload_core.so";
const FILE_NAME: &str = "pipedevice.json";

/// Describes PipeDevice to container engines (Container Device Interface).
///
/// Engines that read it (podman 4.1 or later, docker 28.2 or later, containerd, CRI-O) then give a container
/// the driver's socket and the C library by `--device pipedevice/fabric=native`, and by
/// `--device pipedevice/fabric=preload` also the library that serves unmodified programs, preloaded. Docker
/// before 28.2 has to be told to, by `"features": {"cdi": true}` in /etc/docker/daemon.json; 20.10 does not know it.
#[derive(Debug, clap::Args)]
pub struct CdiArgs {
    /// Directory that container engines read; the file is called pipedevice.json
    #[arg(long, value_name = "DIR", default_value = "/etc/cdi")]
    output: PathBuf,
    /// Print the description instead of writing it
    #[arg(long, conflicts_with = "remove")]
    print: bool,
    /// Remove the description
    #[arg(long)]
    remove: bool,
    /// Socket of the driver; containers get its directory, so that it may be restarted
    #[arg(long, default_value = pd_harness::config::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Directory of libpd.so.0 and libpd_preload.so [default: lib beside this program's directory, or its own]
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &CdiArgs) -> Result<i32> {
    let path = args.output.join(FILE_NAME);
    if args.remove {
        return match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(0),
        };
    }
    let mut text = serde_json::to_string_pretty(&description(&args.socket, &libraries(args)?)?)?;
    text.push('\n');
    if args.print {
        print!("{text}");
        return Ok(0);
    }
    std::fs::create_dir_all(&args.output)
        .and_then(|()| replace(&path, &text))
        .with_context(|| format!("cannot write {}; use root, or --output DIR", path.display()))?;
    println!("{}: use it with --device {KIND}=native or {KIND}=preload", path.display());
    Ok(0)
}

/// Writes a file in one step: an engine may read it at any moment.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let fresh = path.with_extension("json.new");
    let mut file = std::fs::File::create(&fresh)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(fresh, path)
}

/// Libraries that a container may load, as far as they are installed.
#[derive(Debug, Default)]
struct Libraries {
    /// `libpd.so.0`.
    native: Option<PathBuf>,
    /// `libpd_preload.so`.
    preload: Option<PathBuf>,
}

fn libraries(args: &CdiArgs) -> Result<Libraries> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let own = program.parent().unwrap_or(Path::new("/"));
    let places = match &args.libraries {
        Some(place) => vec![place.clone()],
        None => vec![own.join("../lib"), own.to_owned()],
    };
    let find = |name: &str| places.iter().find_map(|place| place.join(name).canonicalize().ok());
    let found = Libraries { native: find("libpd.so.0"), preload: find("libpd_preload.so") };
    if args.libraries.is_some() && found.native.is_none() && found.preload.is_none() {
        bail!("neither libpd.so.0 nor libpd_preload.so is in {}; run make install", places[0].display());
    }
    Ok(found)
}

/// Returns the description. A device without its library is left out.
fn description(socket: &Path, libraries: &Libraries) -> Result<Value> {
    let folder = socket.parent().filter(|folder| folder.is_absolute());
    let folder = folder.with_context(|| format!("{} is not an absolute path", socket.display()))?;
    let mount = |path: &Path, at: &Path| json!({ "hostPath": path, "containerPath": at, "options": ["ro", "nosuid", "nodev", "bind"] });
    let mut native = vec![mount(folder, folder)];
    // The place where the loader of most images looks, with the name that programs are linked to.
    native.extend(libraries.native.iter().map(|path| mount(path, Path::new("/usr/lib/libpd.so.0"))));
    let env = format!("PD_SOCKET={}", socket.display());
    let mut devices = vec![json!({ "name": "native", "containerEdits": { "env": [env], "mounts": native } })];
    if let Some(preload) = &libraries.preload {
        let at = Path::new("/usr/lib/libpd_preload.so");
        let mut mounts = native;
        mounts.push(mount(preload, at));
        // The loader looks for it beside itself.
        mounts.push(mount(&preload.with_file_name(PRELOAD_CORE), &at.with_file_name(PRELOAD_CORE)));
        let env = [env, format!("LD_PRELOAD={}", at.display())];
        devices.push(json!({ "name": "preload", "containerEdits": { "env": env, "mounts": mounts } }));
    }
    Ok(json!({ "cdiVersion": "0.5.0", "kind": KIND, "devices": devices }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_comes_with_its_library_only() {
        let names = |libraries: &Libraries| {
            let text = description(Path::new("/run/pipedevice/driver.sock"), libraries).unwrap();
            let devices = text["devices"].as_array().unwrap().clone();
            devices.iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&Libraries::default()), ["native"]);
        let both = Libraries { native: Some("/a/libpd.so.0.1".into()), preload: Some("/a/p.so".into()) };
        assert_eq!(names(&both), ["native", "preload"]);
        let text = description(Path::new("/run/p/d.sock"), &both).unwrap();
        let preload = &text["devices"][1]["containerEdits"];
        assert_eq!(
            preload["env"],
            json!(["PD_SOCKET=/run/p/d.sock", "LD_PRELOAD=/usr/lib/libpd_preload.so"])
        );
        assert_eq!(preload["mounts"][0]["hostPath"], "/run/p");
        assert_eq!(preload["mounts"][2]["hostPath"], "/a/p.so");
        assert_eq!(preload["mounts"][3]["hostPath"], "/a/libpd_preload_core.so");
        assert_eq!(preload["mounts"][3]["containerPath"], "/usr/lib/libpd_preload_core.so");
        assert!(description(Path::new("d.sock"), &both).is_err());
    }
}
