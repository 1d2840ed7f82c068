//! Containers by their control groups: which engine made one, its number and its pod.
//!
//! Engines name the control group of a container after it. [`container_of`] reads such a path, and asks no engine. The innermost name
//! counts, so that containers in a node that is itself a container (kind, minikube) are told apart. Nothing here reads files.
//!
//! A path is only as trustworthy as the user that made the control groups. Root's engines put theirs below slices and folders of their
//! own. Below anything else, such as `user@UID.service` or a service with groups of its own, it may be a user's word:
//! [`Container::is_users`].
use serde::{Deserialize, Serialize};
use std::fmt;

/// Hexadecimal digits in the id of a container or a pod of podman.
const NUMBER_DIGITS: usize = 64;
/// Digits that lists show of an id.
const SHORT_DIGITS: usize = 12;

/// Maker of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// `pd run`.
    Pd,
    /// Docker.
    Docker,
    /// Podman, or another user of its library.
    Podman,
    /// containerd, by CRI, nerdctl or ctr.
    Containerd,
    /// CRI-O.
    CriO,
    /// Engine that the path does not name: the container of a pod, with control groups not made by systemd.
    Unknown,
}

/// A container, as its control group names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Container {
    /// Maker.
    pub engine: Engine,
    /// The container's id; of `pd run`, its name.
    pub id: String,
    /// The pod that it is in: of Kubernetes the pod's UID, of podman its id.
    pub pod: Option<String>,
    /// Tells whether a user may have made the control group, so that the name is not to be trusted.
    pub is_users: bool,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pd => "pd",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Unknown => "container",
        })
    }
}

/// Writes engine and id, as lists show them where nothing else is known.
impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = match self.engine {
            Engine::Pd => &*self.id,
            _ => self.id.get(..SHORT_DIGITS).unwrap_or(&self.id),
        };
        match self.engine {
            Engine::Pd => f.write_str(short),
            engine => write!(f, "{engine}:{short}"),
        }
    }
}

/// Returns the innermost container that a process in control group `path` is in.
pub fn container_of(path: &str) -> Option<Container> {
    let (mut found, mut pod, mut is_users) = (None::<Container>, None, false);
    let mut before = "";
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if let Some(uid) = pod_of(part) {
            pod = Some(uid);
        }
        let named = named(part).or_else(|| beneath(before, part, pod.is_some()));
        // Groups below a container are that container's.
        is_users |= found.is_none() && named.is_none() && !is_roots(part);
        if let Some((engine, id)) = named {
            // The parent of a container of podman may be its pod, with control groups not made by systemd.
            let pod = pod.take().or_else(|| parent_pod(before));
            found = Some(Container { engine, id: id.to_owned(), pod, is_users });
        }
        before = part;
    }
    found
}

/// Iterates over the lines of `/proc/PID/cgroup`: the controllers of a hierarchy, and the path in it.
fn hierarchies(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// Parses `/proc/PID/cgroup`: returns the control group in the unified hierarchy (or systemd's), and the container of the first hierarchy
/// that names one.
pub fn read(text: &str) -> (Option<&str>, Option<Container>) {
    let of = |wanted: &str| {
        hierarchies(text).find(|(controllers, _)| *controllers == wanted).map(|(_, path)| path)
    };
    let path = of("").or_else(|| of("name=systemd"));
    let first = [of(""), of("name=systemd")].into_iter().flatten();
    let container = first.chain(hierarchies(text).map(|(_, path)| path)).find_map(container_of);
    (path, container)
}

/// Tells whether a process is in a container that another one is in neither itself nor with a container of its own. Takes what
/// `/proc/PID/cgroup` says of the two.
pub fn is_in_another(theirs: &str, own: &str) -> bool {
    let is_around = |container: &Container| {
        let mut outer = hierarchies(own).flat_map(|(_, path)| {
            path.match_indices('/').map(|(end, _)| &path[..end]).chain([path]).filter_map(container_of)
        });
        outer.any(|outer| outer == *container)
    };
    read(theirs).1.is_some_and(|container| !is_around(&container))
}

/// Tells whether root alone makes such control groups: slices of systemd, and folders and services of engines. A user's slice is root's,
/// too, but not the groups below its manager.
fn is_roots(part: &str) -> bool {
    const FOLDERS: [&str; 14] = [
        "docker",
        "kubelet",
        "kubepods",
        "burstable",
        "besteffort",
        "guaranteed",
        "libpod_parent",
        "default",
        "k8s.io",
        "pipedevice",
        "containerd.service",
        "docker.service",
        "crio.service",
        "kubelet.service",
    ];
    // Of the namespace of control groups that this process is in: the way up.
    part.ends_with(".slice")
        || FOLDERS.contains(&part)
        || part == ".."
        || is_number(part)
        || pod_of(part).is_some()
}

fn is_number(text: &str) -> bool {
    text.len() == NUMBER_DIGITS && is_hexadecimal(text)
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns engine and id of a name that says its engine: a scope of systemd, `libpod-NUMBER`, `crio-NUMBER`, or containerd's where it
/// takes a slice for a path.
fn named(part: &str) -> Option<(Engine, &str)> {
    let scope = part.strip_suffix(".scope");
    let of = |prefix: &str, scope: &'_ str| scope.strip_prefix(prefix).is_some_and(is_number);
    if let Some(scope) = scope {
        for (prefix, engine) in [
            ("docker-", Engine::Docker),
            ("libpod-", Engine::Podman),
            ("cri-containerd-", Engine::Containerd),
            ("nerdctl-", Engine::Containerd),
            ("crio-", Engine::CriO),
        ] {
            if of(prefix, scope) {
                return Some((engine, &scope[prefix.len()..]));
            }
        }
    }
    for (prefix, engine) in
        [("libpod-payload-", Engine::Podman), ("libpod-", Engine::Podman), ("crio-", Engine::CriO)]
    {
        if of(prefix, part) {
            return Some((engine, &part[prefix.len()..]));
        }
    }
    let (_, id) = part.split_once(":cri-containerd:")?;
    is_number(id).then_some((Engine::Containerd, id))
}

/// Returns engine and id of a name whose engine follows from the parent group.
fn beneath<'a>(parent: &str, part: &'a str, in_pod: bool) -> Option<(Engine, &'a str)> {
    match parent {
        "docker" if is_number(part) => Some((Engine::Docker, part)),
        "pipedevice" => Some((Engine::Pd, part)),
        // containerd's namespaces of its own: `default` of ctr and nerdctl, `k8s.io` of CRI without pods.
        "default" | "k8s.io" if is_number(part) => Some((Engine::Containerd, part)),
        _ if in_pod && is_number(part) => Some((Engine::Unknown, part)),
        _ => None,
    }
}

/// Returns the pod that a control group is: of Kubernetes, by either driver, or of podman.
fn pod_of(part: &str) -> Option<String> {
    if let Some((_, id)) = part.split_once("libpod_pod_") {
        let id = id.strip_suffix(".slice").unwrap_or(id);
        return is_number(id).then(|| id.to_owned());
    }
    // If containerd takes a slice for a path, the pod is in the same part as its container.
    let part = part.split_once(":cri-containerd:").map_or(part, |(slice, _)| slice);
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match name.rsplit_once("-pod") {
        Some((before, uid)) if before.contains("kubepods") => uid,
        _ => name.strip_prefix("pod")?,
    };
    let plain = uid.replace(['-', '_'], "");
    (plain.len() == 32 && is_hexadecimal(&plain)).then(|| uid.replace('_', "-"))
}

/// Returns the pod of podman that is the parent of a container.
fn parent_pod(parent: &str) -> Option<String> {
    is_number(parent).then(|| parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "4f1a9c0d8e7b6a5f4e3d2c1b0a9f8e7d6c5b4a3f2e1d0c9b8a7f6e5d4c3b2a10";
    const B: &str = "b7d1e2c3a4f5968778695a4b3c2d1e0f1a2b3c4d5e6f708192a3b4c5d6e7f809";
    const POD: &str = "8dbc76a9-1f2e-4c3b-9a8d-7e6f5a4b3c2d";
    /// A static pod's UID has no dashes.
    const STATIC: &str = "3ad2c3e1b0f94d7a8c6b5e4f3a2d1c0b";

    fn check(path: &str, expected: Option<(Engine, &str, Option<&str>, bool)>) {
        let path = path
            .replace("{A}", A)
            .replace("{B}", B)
            .replace("{POD}", POD)
            .replace("{POD_}", &POD.replace('-', "_"))
            .replace("{STATIC}", STATIC);
        let found = container_of(&path);
        let found = found.as_ref().map(|c| (c.engine, &*c.id, c.pod.as_deref(), c.is_users));
        assert_eq!(found, expected, "{path}");
    }

    /// Control groups as engines make them, of version 1 and 2, by systemd and without it.
    #[test]
    fn control_groups_of_engines_are_read() {
        use Engine::{Containerd, CriO, Docker, Pd, Podman, Unknown};
        let user = "/user.slice/user-1000.slice/user@1000.service";
        for (path, expected) in [
            // Docker: cgroupfs, systemd, rootless.
            ("/docker/{A}", (Docker, A, None, false)),
            ("/system.slice/docker-{A}.scope", (Docker, A, None, false)),
            ("/system.slice/docker-{A}.scope/init.scope", (Docker, A, None, false)),
            ("/custom.slice/docker-{A}.scope", (Docker, A, None, false)),
            (&format!("{user}/docker-{{A}}.scope"), (Docker, A, None, true)),
            (&format!("{user}/user.slice/docker-{{A}}.scope"), (Docker, A, None, true)),
            // Podman: systemd, cgroupfs, pods, rootless, with the group that crun makes below, a unit of systemd with cgroups=split.
            ("/machine.slice/libpod-{A}.scope", (Podman, A, None, false)),
            ("/machine.slice/libpod-{A}.scope/container", (Podman, A, None, false)),
            (
                "/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope/container",
                (Podman, A, Some(B), false),
            ),
            ("/libpod_parent/libpod-{A}", (Podman, A, None, false)),
            ("/libpod_parent/{B}/libpod-{A}", (Podman, A, Some(B), false)),
            ("/system.slice/web.service/libpod-payload-{A}", (Podman, A, None, true)),
            (&format!("{user}/user.slice/libpod-{{A}}.scope/container"), (Podman, A, None, true)),
            (
                &format!("{user}/user.slice/user-libpod_pod_{{B}}.slice/libpod-{{A}}.scope"),
                (Podman, A, Some(B), true),
            ),
            (&format!("{user}/app.slice/web.service/libpod-payload-{{A}}"), (Podman, A, None, true)),
            // containerd by nerdctl and ctr.
            ("/system.slice/nerdctl-{A}.scope", (Containerd, A, None, false)),
            ("/default/{A}", (Containerd, A, None, false)),
            // Pods: of each class, by systemd and without it, by each engine.
            (
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD_}.slice/cri-containerd-{A}.scope",
                (Containerd, A, Some(POD), false),
            ),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{A}.scope",
                (Containerd, A, Some(STATIC), false),
            ),
            (
                "/kubepods.slice/kubepods-pod{POD_}.slice/crio-{A}.scope/container",
                (CriO, A, Some(POD), false),
            ),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_}.slice/docker-{A}.scope",
                (Docker, A, Some(POD), false),
            ),
            ("/kubepods/burstable/pod{POD}/{A}", (Unknown, A, Some(POD), false)),
            ("/kubepods/pod{POD}/{A}", (Unknown, A, Some(POD), false)),
            ("/kubepods/besteffort/pod{POD}/crio-{A}", (CriO, A, Some(POD), false)),
            (
                "/system.slice/containerd.service/kubepods-besteffort-pod{POD_}.slice:cri-containerd:{A}",
                (Containerd, A, Some(POD), false),
            ),
            // Of version 1, where users have folders, and of a service that makes groups of its own.
            ("/user/1000.user/1.session/docker/{A}", (Docker, A, None, true)),
            ("/system.slice/app.service/docker-{A}.scope", (Docker, A, None, true)),
            ("/home/docker/{A}", (Docker, A, None, true)),
            ("/../../docker/{A}", (Docker, A, None, false)),
            // Nodes that are containers: kind and minikube, by systemd and without it.
            ("/docker/{B}/kubelet/kubepods/burstable/pod{POD}/{A}", (Unknown, A, Some(POD), false)),
            ("/docker/{B}/kubepods/besteffort/pod{POD}/{A}", (Unknown, A, Some(POD), false)),
            (
                "/system.slice/docker-{B}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
                 kubelet-kubepods-burstable-pod{POD_}.slice/cri-containerd-{A}.scope",
                (Containerd, A, Some(POD), false),
            ),
            (
                "/machine.slice/libpod-{B}.scope/container/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{POD_}.slice/\
                 cri-containerd-{A}.scope",
                (Containerd, A, Some(POD), false),
            ),
            (
                "/system.slice/docker-{B}.scope/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD_}.slice/docker-{A}.scope",
                (Docker, A, Some(POD), false),
            ),
            (
                &format!(
                    "{user}/user.slice/libpod-{{B}}.scope/container/kubelet/kubepods/pod{{POD}}/{{A}}"
                ),
                (Unknown, A, Some(POD), true),
            ),
            // Programs of the node itself are the node's.
            ("/docker/{B}/kubelet", (Docker, B, None, false)),
            ("/system.slice/docker-{B}.scope/system.slice/containerd.service", (Docker, B, None, false)),
            ("/pipedevice/web", (Pd, "web", None, false)),
        ] {
            check(path, Some(expected));
        }
    }

    #[test]
    fn control_groups_of_others_are_no_containers() {
        for path in [
            "/",
            "",
            "/init.scope",
            "/system.slice/docker.service",
            "/system.slice/docker-{A}.service",
            "/system.slice/docker-abc.scope",
            "/docker/short",
            "/docker",
            "/pipedevice",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD_}.slice",
            "/kubepods/burstable/podzzz/{A}",
            "/machine.slice/libpod-conmon-{A}.scope",
            "/kubepods.slice/kubepods-pod{POD_}.slice/crio-conmon-{A}.scope",
            "/user.slice/user-1000.slice/session-3.scope",
            "/system.slice/{A}",
        ] {
            check(path, None);
        }
    }

    #[test]
    fn each_hierarchy_may_name_the_container() {
        let docker = format!("/docker/{A}");
        for (text, path, is_known) in [
            (format!("0::{docker}\n"), Some(&*docker), true),
            (format!("12:cpu,cpuacct:{docker}\n1:name=systemd:{docker}\n"), Some(&*docker), true),
            // Both versions at once: the unified one is empty.
            (format!("4:memory:{docker}\n1:name=systemd:{docker}\n0::/\n"), Some("/"), true),
            (format!("4:memory:{docker}\n"), None, true),
            ("0::/a:b\n".to_owned(), Some("/a:b"), false),
            (String::new(), None, false),
        ] {
            let (found, container) = read(&text);
            assert_eq!((found, container.is_some()), (path, is_known), "{text}");
        }
    }

    #[test]
    fn a_process_in_another_container_is_told_from_those_around() {
        let node = format!("0::/docker/{A}");
        let pod = format!("{node}/kubelet/kubepods/burstable/pod{POD}/{B}");
        let other = format!("4:memory:/docker/{B}\n0::/");
        for (theirs, own, is_other) in [
            ("0::/", "0::/", false),
            ("0::/user.slice/session-1.scope", &*pod, false),
            ("", "", false),
            (&*node, &*node, false),
            (&*node, &*pod, false),
            (&*pod, &*pod, false),
            (&*pod, &*node, true),
            (&*node, "0::/system.slice/pipedevice.service", true),
            (&*other, &*node, true),
            (&*other, "", true),
        ] {
            assert_eq!(is_in_another(theirs, own), is_other, "{theirs} {own}");
        }
    }

    #[test]
    fn names_in_lists_are_short() {
        let of = |path: &str| container_of(path).unwrap().to_string();
        assert_eq!(of(&format!("/docker/{A}")), "docker:4f1a9c0d8e7b");
        assert_eq!(of("/pipedevice/a-container-with-a-long-name"), "a-container-with-a-long-name");
    }

    proptest::proptest! {
        #[test]
        fn any_path_is_read(path in "[/a-f0-9.:_@-]{0,200}|(/|docker|kubepods|pod|libpod-|[a-f0-9]{64}|\\.scope|\\.slice|é){0,12}") {
            if let Some(container) = container_of(&path) {
                proptest::prop_assert!(path.contains(&container.id));
                let _ = container.to_string();
            }
            let _ = read(&path);
        }
    }
}
