//! The proxies: their configuration, and the rules that lead connections to them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The port that proxies take connections on.
pub(super) const ENTRANCE: u16 = 15001;
/// The user of proxies. The kernel's rules do not redirect its connections.
const USER: &str = "nobody";
const GROUP: &str = "nogroup";

/// A proxy between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    /// HAProxy, which copies answers, to the original destination.
    Haproxy,
    /// HAProxy with `option splice-response`.
    HaproxySplice,
    /// nginx, to a server that its configuration names.
    Nginx,
}

impl Proxy {
    pub(super) const ALL: [Proxy; 3] = [Proxy::Haproxy, Proxy::HaproxySplice, Proxy::Nginx];

    /// Returns the name in rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Proxy::Haproxy => "haproxy",
            Proxy::HaproxySplice => "haproxy-splice",
            Proxy::Nginx => "nginx",
        }
    }

    /// Returns the program and its Debian package.
    pub(super) fn program(self) -> (&'static str, &'static str) {
        match self {
            Proxy::Haproxy | Proxy::HaproxySplice => ("haproxy", "haproxy"),
            Proxy::Nginx => ("nginx", "nginx-light"),
        }
    }

    /// Writes its configuration to `dir`; its command. `server`: where it connects to if it does not know the original destination.
    pub(super) fn configure(self, dir: &Path, server: &str) -> Result<Vec<String>> {
        let name = self.name();
        let file = dir.join(format!("{name}.cfg"));
        let (text, command) = match self {
            Proxy::Haproxy | Proxy::HaproxySplice => {
                let option = if self == Proxy::HaproxySplice { "option splice-response" } else { "" };
                let text = format!(
                    "global\n nbthread 1\n user {USER}\n group {GROUP}\n\
                     defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n {option}\n\
                     listen any\n bind 0.0.0.0:{ENTRANCE}\n http-reuse always\n http-response set-header {} {name}\n server any 0.0.0.0\n",
                    crate::web::PROXY
                );
                (text, vec!["haproxy", "-db", "-f"])
            }
            Proxy::Nginx => {
                let at = dir.display();
                let text = format!(
                    "user {USER} {GROUP}; worker_processes 1; daemon off; pid {at}/proxy.pid; error_log stderr;
                     events {{ worker_connections 1024; }}
                     http {{ access_log off; keepalive_requests 1000000000; proxy_max_temp_file_size 0;
                     client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};
                     uwsgi_temp_path {at}; scgi_temp_path {at};
                     upstream one {{ server {server}; keepalive 128; keepalive_requests 1000000000; }}
                     server {{ listen {ENTRANCE}; location / {{ proxy_pass http://one; proxy_http_version 1.1;
                     proxy_set_header Connection \"\"; add_header {} {name}; }} }} }}",
                    crate::web::PROXY
                );
                (text, vec!["nginx", "-e", "stderr", "-c"])
            }
        };
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.display().to_string();
        Ok(command.into_iter().map(str::to_owned).chain([file]).collect())
    }
}

/// Writes rules to `dir` that redirect connections to `port` of any address to the proxy in the same network namespace, except the proxy's
/// own. Returns the command that puts the rules in force.
pub(super) fn redirect(dir: &Path, port: u16) -> Result<Vec<String>> {
    let file = dir.join("redirect.nft");
    let text = format!(
        "table ip pd_bench {{\n chain output {{\n  type nat hook output priority -100\n  meta skuid != \"{USER}\" tcp dport {port} redirect to :{ENTRANCE}\n }}\n}}\n"
    );
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(["nft", "-f"].map(str::to_owned).into_iter().chain([file.display().to_string()]).collect())
}

/// A rule that leads connections between containers of a tenant through the container of a proxy.
pub(super) struct Lead {
    pub(super) tenant: &'static str,
    pub(super) port: u16,
    pub(super) container: String,
    /// Tells whether the driver moves the bytes of both legs.
    pub(super) is_offloaded: bool,
}

/// Returns the policy's lines for these.
pub(super) fn policy(leads: &[Lead]) -> String {
    let tenant = crate::run::sidecar::TENANT;
    let containers: Vec<&str> = leads.iter().map(|lead| lead.container.as_str()).collect();
    let mut text = format!("[[tenant]]\nname = \"{tenant}\"\ncontainers = {containers:?}\n");
    for Lead { tenant: own, port, container, is_offloaded } in leads {
        let path = if *is_offloaded { "offloaded" } else { "direct" };
        let _ = write!(
            text,
            "[[rule]]\nfrom = \"{own}\"\nto = \"{own}\"\nport = {port}\naction = \"allow\"\npath = \"{path}\"\n\
             via = [\"container:{container}:{ENTRANCE}\"]\n\
             [[rule]]\nfrom = \"{own}\"\nto = \"{tenant}\"\nport = {ENTRANCE}\naction = \"allow\"\npath = \"{path}\"\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_a_policy() {
        let lead = |port, is_offloaded| Lead {
            tenant: "default",
            port,
            container: format!("bench-1-{port}"),
            is_offloaded,
        };
        let text = policy(&[lead(8081, false), lead(8082, true)]);
        let policy = pd_driver::Policy::parse(&text).unwrap();
        assert_eq!(policy.chains().count(), 2);
        assert_eq!(policy.rules.len(), 4);
    }
}
